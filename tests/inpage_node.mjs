// The page's Python, in Node: runs tests/inpage_cases.py with the stand-in on 32 bits, as a browser does. Arguments: folder of Pyodide, this repository's root.
import { createRequire } from "module";
import { readFileSync } from "fs";

const [folder, root] = process.argv.slice(2);
const { loadPyodide } = createRequire(import.meta.url)(`${folder}/pyodide.js`);
const py = await loadPyodide({ indexURL: folder, packages: ["numpy"], stdout: () => {}, stderr: () => {} });
py.unpackArchive(new Uint8Array(readFileSync(`${folder}/book.zip`)), "zip", { extractDir: "/book" });
py.FS.writeFile("/book/inpage_cases.py", readFileSync(`${root}/tests/inpage_cases.py`, "utf8"));
const said = py.runPython(`
import json, sys
sys.path.insert(0, "/book")
import inpage_cases
json.dumps(inpage_cases.cases())
`);
process.stdout.write(said);
