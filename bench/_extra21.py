"extra runs of chapter 21: bias rates, twice the steps."
import multiprocessing as mp, os, sys, time, json
os.environ["OMP_NUM_THREADS"]="1"
import torch; torch.set_num_threads(1)
from functools import partial
from bench import expert_text as et, expert_facts as ef
from tfmlib.balancing import *
def bias(rate, decay, seed):
    case="2 of 16, bias"; peak=.016; steps=et.STEPS
    model,(words,_)=et.build(et.MODELS["2 of 16, biased"],seed=seed),et.corpus(0,8000)
    at=[0]
    def batch(step):
        at[0]=step
        return (words[torch.randint(len(words),(et.ROWS,),generator=et.seeded(et.mix_seed(seed,step)))],)
    def loss(model, ids):
        x,routings=et.hidden_and_routings(model,ids[:,:-1])
        l=et.F.cross_entropy(model.logits(x).flatten(0,1),ids[:,1:].flatten())
        layers=[m.router.routing for m in model.modules() if isinstance(m,et.MixtureOfExperts)]
        for rule,r in zip(layers,routings): rule.update(et.tokens_per_expert(r), rate*((1-at[0]/steps) if decay else 1))
        return l
    opt=et.AdamW(et.parameter_groups(model,.01),et.WarmupCosine(peak,et.WARM,steps),clip=1.)
    et.train(model,loss,batch,steps,opt,seed=seed)
    return et.judged(case,model,2)
def do(t):
    kind,*a=t; b=time.process_time()
    if kind=="bias":
        r=et.kept("trial-bias-"+"-".join(map(str,a)),lambda: bias(*a)); r=(r["loss"],r["busiest, layer 1"],r["busiest, layer 2"])
    elif kind in ("b","bias-rate"):
        c="2 of 16, bias"
        def tried(peak): return et.kept(f"text-{c}-0-{et.TRIED}-{peak:g}", lambda: et.judged(c, et.trained(c, peak, 100, et.TRIED), 1))["loss"]
        peak=et.best_rate(tried,et.PEAKS)
        if kind=="b": r=et.kept(f"text-{c}-{a[0]}-{et.STEPS}-{peak:g}", lambda: et.judged(c, et.trained(c, peak, a[0], et.STEPS), 2)); r=(r["loss"],r["busiest, layer 1"],r["busiest, layer 2"])
        else: r=peak
    elif kind=="text":
        c,peak,steps=a; r=et.kept(f"text-{c}-0-{steps}-{peak:g}",lambda: et.judged(c,et.trained(c,peak,0,steps),2))["loss"]
    else:
        k,n,steps=a
        def tried(peak): return ef.kept(f"facts-{k}-{n}-0-{ef.TRIED}-{peak:g}", lambda: 1/0)["nats"]
        peak=ef.best_rate(tried,ef.PEAKS)
        r=ef.kept(f"facts-{k}-{n}-0-{steps}-{peak:g}",lambda: ef.judged(ef.trained(k,n,peak,0,steps),n,0)); r=(r["nats"],r["recalled"])
    print(t,r,round(time.process_time()-b),flush=True)
def worker(ts,at):
    while True:
        with at.get_lock(): i=at.value; at.value+=1
        if i>=len(ts): return
        try: do(ts[i])
        except Exception as e: print(ts[i],"FAILED",repr(e),flush=True)
if __name__=="__main__":
    ts=[("bias-rate",),("text","2 of 16, loss .01",.016,6000),("text","1 of 8, loss .01",.016,6000),("b",0),("b",1),("b",2)]
    ts+=[("text","wide",.032,6000),("text","dense",.016,6000),("facts","experts, 1 of 8, softmax after",4096,6000),("facts","dense",4096,6000)]
    mp.set_start_method("fork"); at=mp.Value("i",0)
    ps=[mp.Process(target=worker,args=(ts,at)) for _ in range(int(sys.argv[1]))]
    for p in ps: p.start()
    for p in ps: p.join()
    print("all done")
