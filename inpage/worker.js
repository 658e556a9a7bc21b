// Python, NumPy and the book's checkers in a worker: the page stays free, and a loop
// without end is ended by ending the worker.
importScripts("py/pyodide.js");

const tell = (kind, more = {}) => postMessage({ kind, ...more });
const plainFetch = self.fetch;

// Pyodide fetches by `fetch`; what arrives is counted on its way.
function counting(sizes) {
  const total = Object.values(sizes).reduce((a, b) => a + b, 0);
  const last = (url) => new URL(url, self.location).pathname.split("/").pop();
  let got = 0;
  self.fetch = async (url, how) => {
    const answer = await plainFetch(url, how);
    const name = last(url.url ?? url);
    if (!answer.ok) throw new Error(`${name} cannot be loaded (${answer.status})`);
    if (!(name in sizes)) return answer;
    const count = new TransformStream({
      transform(chunk, sink) {
        got += chunk.byteLength;
        tell("loading", { got: Math.min(got, total), total });
        sink.enqueue(chunk);
      },
    });
    const { status, headers } = answer;
    return new Response(answer.body.pipeThrough(count), { status, headers });
  };
}

async function start({ page, sizes, version }) {
  counting(sizes);
  const here = new URL("py/", self.location).href;
  const get = async (name) => (await fetch(`py/${name}.zip?v=${version}`)).arrayBuffer();
  const zips = Promise.all([get("book"), get(page)]);
  const silent = { stdout: () => {}, stderr: () => {} };
  const py = await loadPyodide({ indexURL: here, packages: ["numpy"], ...silent });
  for (const zip of await zips) py.unpackArchive(zip, "zip", { extractDir: "/book" });
  tell("starting");
  py.runPython(`
    import json, sys, warnings
    warnings.simplefilter("ignore")
    sys.path.insert(0, "/book")
    import judge, tfmlib.practice.${page}

    def answer(name, source, tell):
        return json.dumps(judge.verdict("${page}", name, source, tell))
  `);
  return py.globals.get("answer");
}

let ready;
onmessage = async ({ data }) => {
  try {
    if (data.kind === "start") {
      ready = start(data);
      await ready;
      tell("ready");
      return;
    }
    const answer = await ready;
    const at = (step, steps, property) => tell("case", { step, steps, property });
    tell("verdict", JSON.parse(answer(data.name, data.source, at)));
  } catch (error) {
    const lines = String(error.message ?? error).trim().split("\n");
    tell("broken", { why: lines.at(-1) });
  }
};
