// Requests to the server of this page: answers of the read API below /fleet/v1/, and
// objects of the hub's API server below /k8s/.

/** A request that did not succeed. Status 0: nothing answered. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** When to try again, in seconds; absent where the answer does not say. */
    readonly retryAfter?: number,
    /** The path that was asked. */
    readonly path = '',
  ) {
    super(message)
  }
}

/** After how many seconds a request that found no hub is made again, where the answer does not say. */
const defaultRetryAfter = 10

/** Reports whether a later request may succeed without a change by a person. */
export function isTemporary(status: number): boolean {
  return status === 0 || status === 429 || status >= 502
}

export type Params = Record<string, string | number | boolean | undefined>

/** Returns a path with the parameters that are set, in a stable order. */
export function withParams(path: string, params: Params = {}): string {
  const query = new URLSearchParams()
  for (const name of Object.keys(params).sort()) {
    const value = params[name]
    if (value !== undefined && value !== '' && value !== false) query.set(name, String(value))
  }
  const text = query.toString()
  return text ? `${path}?${text}` : path
}

// What may be too long for an address: a whole policy, and the names of a prune. Proxies refuse addresses of more than 8 KiB.
const longQuestions = new Set(['/fleet/v1/blastradius', '/fleet/v1/prunereports/groups'])

/** Asks for JSON. An answer that has not changed is taken from the browser's cache, by its ETag. Parameters that may be long are the body. */
export async function getJSON<T>(path: string, signal?: AbortSignal): Promise<T> {
  const [question, query] = path.split('?', 2) as [string, string?]
  if (longQuestions.has(question)) return (await send(question, { signal, ...withBody('POST', Object.fromEntries(new URLSearchParams(query))) })) as T
  return (await send(path, { signal, cache: 'no-cache' })) as T
}

/** Sends a change, which the API server decides on with the rights of the person. */
export async function sendJSON<T>(method: 'POST' | 'PATCH' | 'DELETE', path: string, body?: unknown, contentType = 'application/json'): Promise<T> {
  return (await send(path, withBody(method, body, contentType))) as T
}

function withBody(method: string, body: unknown, contentType = 'application/json'): RequestInit {
  const headers: Record<string, string> = { 'Ot-Fleet': '1' }
  if (body !== undefined) headers['Content-Type'] = contentType
  return { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }
}

export const mergePatch = 'application/merge-patch+json'
export const jsonPatch = 'application/json-patch+json'

async function send(path: string, init: RequestInit): Promise<unknown> {
  let response: Response
  try {
    response = await fetch(path, { credentials: 'same-origin', redirect: 'error', ...init })
  } catch (err) {
    if (err instanceof DOMException && err.name === 'AbortError') throw err
    throw new RequestError(0, 'nothing answers at this address', defaultRetryAfter, path)
  }
  const text = await response.text()
  const answer = parse(text)
  if (response.ok) {
    if (text !== '' && answer === undefined) throw new RequestError(response.status, 'the answer is not JSON: does a proxy in front answer for the hub?', undefined, path)
    return answer
  }
  const after = Number(response.headers.get('Retry-After') ?? NaN)
  const retryAfter = Number.isFinite(after) ? after : isTemporary(response.status) ? defaultRetryAfter : undefined
  throw new RequestError(response.status, errorText(answer) ?? plainError(text, response.headers.get('Content-Type')) ?? `the answer is ${response.status} ${response.statusText}`.trim(), retryAfter, path)
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Returns the words of an error that is plain text, as of a check before the read API; nothing for the page of a proxy. */
export function plainError(text: string, contentType: string | null): string | undefined {
  const words = text.trim()
  return contentType?.startsWith('text/plain') && words !== '' && words.length <= 1024 ? words : undefined
}

/** Returns the words of an error: those of the read API, or of a Status of the API server. */
export function errorText(answer: unknown): string | undefined {
  if (typeof answer !== 'object' || answer === null) return undefined
  const { error, message } = answer as { error?: unknown; message?: unknown }
  if (typeof error === 'string' && error !== '') return error
  if (typeof message === 'string' && message !== '') return message
  return undefined
}
