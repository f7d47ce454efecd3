// The API page: each route as described in /openapi.json, with a command line that calls it.

import { attempt } from "./attempt.js";
import { described, hasKey } from "./client.js";
import { Schemas } from "./schema.js";

const $ = (id) => document.getElementById(id);
const METHODS = ["get", "post", "put", "patch", "delete"];
// longer lists of optional fields are sorted by name and collapsed
const LONG = 8;
let schemas = null;

async function begin() {
  const openapi = await described();
  schemas = new Schemas(openapi);
  const tags = grouped(openapi.paths);
  $("what").textContent = `${openapi.info.title} ${openapi.info.version}`;
  $("index").replaceChildren(...[...tags].map(([tag, routes]) => indexed(tag, routes)));
  $("routes").replaceChildren(...[...tags].map(([tag, routes]) => section(tag, routes)));
  $("reference").hidden = false;
  // the target of the address's fragment exists only now
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

function grouped(paths) {
  const tags = new Map();
  for (const [path, methods] of Object.entries(paths)) {
    for (const method of METHODS.filter((one) => one in methods)) {
      const told = methods[method];
      const [tag = "other"] = told.tags ?? [];
      const id = `${method}${path.replace(/[^a-z0-9_]+/gi, "-")}`.replace(/-$/, "");
      tags.set(tag, [...(tags.get(tag) ?? []), { id, method: method.toUpperCase(), path, told }]);
    }
  }
  return tags;
}

function indexed(tag, routes) {
  const links = routes.map(({ id, method, path }) => {
    const link = make("a", "", signed(method), " ", make("code", "", path));
    link.href = `#${id}`;
    return make("li", "", link);
  });
  return make("div", "", make("p", "quiet", tag), make("ul", "", ...links));
}

function section(tag, routes) {
  return make("section", "", make("h2", "tag", tag), ...routes.map(article));
}

function article({ id, method, path, told }) {
  const made = make("article", "route", make("h3", "", signed(method), " ", make("code", "", path)));
  made.id = id;
  made.append(...paragraphs(told.description ?? told.summary));
  made.append(...example(method, path, told));
  if (told.parameters?.length) made.append(make("h4", "", "Parameters"), list(told.parameters.map(parameter)));
  const [[media, { schema }] = [null, {}]] = Object.entries(told.requestBody?.content ?? {});
  if (media) made.append(make("h4", "", "Body ", make("span", "quiet", media)), ...body(schema));
  made.append(make("h4", "", "Answers"), list(Object.entries(told.responses ?? {}).map(answer)));
  return made;
}

function body(schema) {
  const objects = schemas.objects(schema);
  if (objects.length === 1) return [...paragraphs(objects[0].description), ...fields(objects[0], [objects[0]])];
  return objects.map((one, at) => {
    const made = nested(one, []);
    made.open = at === 0;
    return made;
  });
}

/** within: the objects that enclose this one; they are not shown again inside it. */
function fields(object, within) {
  const rows = Object.entries(object.properties).map(([name, schema]) => ({ name, schema, required: object.required?.includes(name) }));
  const must = rows.filter((row) => row.required);
  const may = rows.filter((row) => !row.required);
  const shown = (some) => list(some.map((row) => field(row, within)));
  if (may.length <= LONG) return rows.length ? [shown([...must, ...may])] : [];
  may.sort((a, b) => a.name.localeCompare(b.name));
  const more = must.length ? `${may.length} more fields, none required` : `${may.length} fields, none required`;
  return [...(must.length ? [shown(must)] : []), make("details", "", make("summary", "", more), shown(may))];
}

function field({ name, schema, required }, within) {
  const value = [make("code", "", schemas.type(schema))];
  const bounds = schemas.bounds(schema);
  if (bounds) value.push(" ", make("span", "quiet", bounds));
  const fallback = schema.default ?? null;
  if (fallback !== null) value.push(" ", make("span", "quiet", `${JSON.stringify(fallback)} if left out`));
  const inner = schemas.objects(schema).filter((one) => !within.includes(one));
  return {
    term: [make("code", "", name), ...(required ? [" ", make("b", "need", "required")] : [])],
    value: [make("p", "", ...value), ...paragraphs(schema.description), ...inner.map((one) => nested(one, within))],
  };
}

function parameter({ name, in: place, required, schema, description }) {
  const row = field({ name, schema: { ...schema, description }, required }, []);
  row.value[0].append(" ", make("span", "quiet", `in the ${place}`));
  return row;
}

function nested(object, within) {
  const inside = [...paragraphs(object.description), ...fields(object, [...within, object])];
  return make("details", "", make("summary", "", object.title ?? "object"), ...inside);
}

function answer([status, { description, content }]) {
  const media = Object.keys(content ?? {});
  const objects = Object.values(content ?? {}).flatMap(({ schema }) => schemas.objects(schema));
  const facts = [description, media.length ? make("span", "quiet", ` ${media.join(", ")}`) : ""];
  return { term: [make("code", "", status)], value: [make("p", "", ...facts), ...objects.map((one) => nested(one, []))] };
}

/** A call as a shell command. An API key appears only as the name of a variable. */
function example(method, path, { requestBody }) {
  // relative to the address that this page was loaded from, so that it works behind a proxy; path parameters in capitals
  const place = path.slice(1).replace(/\{(\w+)\}/g, (_, name) => name.toUpperCase());
  const parts = [`curl ${new URL(place, document.baseURI).href}`];
  if (!["GET", "POST"].includes(method)) parts.push(`-X ${method}`);
  if (hasKey()) parts.push('-H "Authorization: Bearer $API_KEY"');
  const [[media, { schema }] = [null, {}]] = Object.entries(requestBody?.content ?? {});
  if (media) parts.push(`-H 'Content-Type: ${media}'`, `-d ${quoted(JSON.stringify(schemas.sample(schema)))}`);
  const line = parts.join(" \\\n  ");
  const shown = make("pre", "call", make("code", "", line));
  if (!navigator.clipboard) return [shown];
  const button = Object.assign(make("button", "copy", "Copy"), { type: "button" });
  button.setAttribute("aria-label", `Copy the call of ${path}`);
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard.writeText(line).then(() => true, () => false);
    $("status").textContent = button.textContent = copied ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return [make("div", "calls", shown, button)];
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function signed(method) {
  const made = make("b", "method", method);
  made.dataset.hue = method === "GET" ? "0" : "1";
  return made;
}

function list(rows) {
  return make("dl", "listed", ...rows.map(({ term, value }) => make("div", "", make("dt", "", ...term), make("dd", "", ...value))));
}

/** Line breaks of docstrings come from the source; only an empty line separates paragraphs. */
function paragraphs(text) {
  return (text ?? "").split(/\n\s*\n/).filter(Boolean).map((one) => make("p", "told", one.replace(/\s*\n\s*/g, " ")));
}

function make(name, kind, ...inside) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...inside);
  return made;
}

attempt(begin);
