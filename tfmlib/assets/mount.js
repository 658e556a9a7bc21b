// Mounts the page's interactive figures. Each <figure data-module="NAME" data-state="{…}"> holds a still picture;
// ./NAME.js, the same module that Jupyter runs, draws over a copy of the state in its place once it comes near.

function frozen(state) {                        // what a figure needs of a Jupyter model, without a kernel
  const heard = {};
  return {
    get: key => state[key],
    set(key, value) {
      const changed = JSON.stringify(state[key]) !== JSON.stringify(value);
      state[key] = value;
      if (changed) for (const f of [...(heard["change:" + key] ?? [])]) f();
    },
    on(event, f) { (heard[event] ??= new Set()).add(f); },
    off(event, f) { heard[event]?.delete(f); },
    save_changes() {},
  };
}

async function mount(figure) {
  const still = figure.querySelector(".tfm-stage"), el = document.createElement("div");
  el.className = "tfm-stage";
  try {
    const { default: widget } = await import(`./${figure.dataset.module}.js`);
    await widget.render({ model: frozen(JSON.parse(figure.dataset.state)), el });
    still.replaceWith(el);
    figure.dataset.live = "";
  } catch (error) {                             // the still picture stays
    console.error(`figure ${figure.dataset.module}:`, error);
  }
}

const near = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); mount(entry.target); }
}, { rootMargin: "600px" });
document.querySelectorAll("figure[data-module]").forEach(figure => near.observe(figure));
