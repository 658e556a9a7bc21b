// Python and NumPy in a worker, with what the page asks for: the book's checkers, or what
// runs a cell. The page stays free, and a loop without end is ended by ending the worker.
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

async function start({ zips, modules, sizes, version }) {
  counting(sizes);
  const here = new URL("py/", self.location).href;
  const get = async (name) => (await fetch(`py/${name}.zip?v=${version}`)).arrayBuffer();
  const fetched = Promise.all(zips.map(get));
  const silent = { stdout: () => {}, stderr: () => {} };
  const py = await loadPyodide({ indexURL: here, packages: ["numpy"], ...silent });
  for (const zip of await fetched) py.unpackArchive(zip, "zip", { extractDir: "/book" });
  tell("starting");
  py.runPython(`
    import sys, warnings
    warnings.simplefilter("ignore")
    sys.path.insert(0, "/book")
    import ${modules.join(", ")}
    from ${modules[0]} import answer
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
    tell("verdict", JSON.parse(answer(...data.given, at)));
  } catch (error) {
    const lines = String(error.message ?? error).trim().split("\n");
    tell("broken", { why: lines.at(-1) });
  }
};
