// JSON schemas as FastAPI writes them: a short description of the values they allow, and a short sample.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const TOKENS = 16;

export class Schemas {
  #known;

  constructor(openapi) {
    this.#known = openapi.components?.schemas ?? {};
  }

  resolved(schema) {
    return schema?.$ref ? (this.#known[schema.$ref.split("/").at(-1)] ?? {}) : (schema ?? {});
  }

  /** The alternatives that a schema allows, as schemas without alternatives of their own; null is last. */
  alternatives(schema) {
    const whole = this.resolved(schema);
    const found = (whole.anyOf ?? whole.oneOf)?.flatMap((one) => this.alternatives(one)) ?? [whole];
    return [...found.filter((one) => one.type !== "null"), ...found.filter((one) => one.type === "null")];
  }

  /** The type in words, such as `string | number[] | null`. */
  type(schema) {
    return [...new Set(this.alternatives(schema).map((one) => this.#typeOf(one)))].join(" | ");
  }

  /** The bounds of a value, such as `0 to 2`; empty if it has none. */
  bounds(schema) {
    const all = this.alternatives(schema).filter((one) => one.type !== "null");
    const bounded = all.map((one) => [this.#typeOf(one), this.#boundsOf(one)]).filter(([, bounds]) => bounds);
    return bounded.map(([type, bounds]) => (all.length > 1 ? `${type}: ${bounds}` : bounds)).join("; ");
  }

  /** The objects with named fields in a schema, also those in lists and mappings. */
  objects(schema) {
    return this.alternatives(schema).flatMap((one) => {
      if (one.properties) return [one];
      if (one.type === "array") return one.items ? this.objects(one.items) : [];
      const values = valuesOf(one);
      return values ? this.objects(values) : [];
    });
  }

  /** A short valid value: the first example, else for an object its required fields. */
  sample(schema) {
    const [one] = this.alternatives(schema);
    if (one.examples?.length) return inOrder(one.examples[0], one.properties);
    if ("const" in one) return one.const;
    if (one.enum) return one.enum[0];
    if (one.type === "array") return [this.sample(one.items)];
    if (one.type === "integer" || one.type === "number") {
      return Math.min(Math.max(TOKENS, one.minimum ?? -Infinity), one.maximum ?? Infinity);
    }
    if (one.type === "boolean") return true;
    if (one.type === "string") return one.pattern ? "name" : "Hello";
    return Object.fromEntries((one.required ?? []).map((name) => [name, this.sample(one.properties[name])]));
  }

  #typeOf(one) {
    if ("const" in one) return JSON.stringify(one.const);
    if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
    if (one.type === "array") {
      const inner = this.type(one.items);
      return inner.includes(" | ") ? `(${inner})[]` : `${inner}[]`;
    }
    if (one.properties) return one.title ?? "object";
    const values = valuesOf(one);
    return values ? `object of ${this.type(values)}` : (one.type ?? "anything");
  }

  #boundsOf(one) {
    const told = [];
    if (one.type === "array") {
      told.push(count(one.minItems, one.maxItems, "item"));
      const inner = one.items ? this.bounds(one.items) : "";
      if (inner) told.push(`each ${inner}`);
    } else if (one.type === "object" && !one.properties) {
      told.push(count(one.minProperties, one.maxProperties, "entry", "entries"));
      for (const pattern of Object.keys(one.patternProperties ?? {})) told.push(`keys match ${pattern}`);
      if (one.propertyNames) told.push(`keys of ${this.bounds(one.propertyNames)}`);
      const values = valuesOf(one);
      const bounds = values ? this.bounds(values) : "";
      if (bounds) told.push(`values of ${bounds}`);
    } else {
      told.push(range(one), count(one.minLength, one.maxLength, "character"), one.pattern ? `matches ${one.pattern}` : "");
    }
    return told.filter(Boolean).join(", ");
  }
}

/** An example with its keys in the schema's order; FastAPI sorts them by name. */
function inOrder(example, properties) {
  const names = Object.keys(properties ?? {}).filter((name) => name in example);
  return properties ? Object.fromEntries(names.map((name) => [name, example[name]])) : example;
}

/** The schema of an object's values if its keys are not fixed. */
function valuesOf(one) {
  if (one.properties) return null;
  const free = typeof one.additionalProperties === "object" ? one.additionalProperties : null;
  return Object.values(one.patternProperties ?? {})[0] ?? free;
}

function range({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }) {
  const low = minimum ?? exclusiveMinimum;
  const high = maximum ?? exclusiveMaximum;
  const under = maximum === undefined ? "under " : "";
  const over = minimum === undefined ? "over " : "";
  if (low === undefined) return high === undefined ? "" : `${under || "at most "}${number(high)}`;
  if (high === undefined) return `${over || "at least "}${number(low)}`;
  return `${over}${number(low)} to ${under}${number(high)}`;
}

function count(least, most, one, many = `${one}s`) {
  if (most === 0) return "empty";
  if (least === undefined && most === undefined) return "";
  if (most === undefined) return `at least ${number(least)} ${least === 1 ? one : many}`;
  return `${least ? `${number(least)} to` : "at most"} ${number(most)} ${most === 1 ? one : many}`;
}

/** A number, large powers of two as powers: 2147483648 is hard to read. */
function number(value) {
  const power = Math.log2(Math.abs(value));
  if (power >= 20 && Number.isInteger(power)) {
    return `${value < 0 ? "−" : ""}2${[...String(power)].map((digit) => SUPERSCRIPTS[digit]).join("")}`;
  }
  return value.toLocaleString("en").replace("-", "−");
}
