// The address of the page holds all of its state, so that it can be shared and reloaded.
import { computed, signal } from '@preact/signals'

/** Parameters that may be long: a draft of the policy, and what is ticked. They are in the fragment, which no server sees: proxies refuse addresses of more than 8 KiB. */
const longParams = ['draft', 'tick']

const keptKey = 'ot-fleet-fragment'

/** Loads the page anew. A sign-in of a proxy leads through other pages, which lose the fragment: it is kept for this address. */
export function reload(): void {
  writeAddress()
  try {
    const { pathname, search, hash } = window.location
    if (hash) sessionStorage.setItem(keptKey, JSON.stringify([pathname + search, hash]))
  } catch {
    // storage may be switched off: the fragment is lost
  }
  window.location.reload()
}

function restoreFragment(): void {
  try {
    const [address, hash] = JSON.parse(sessionStorage.getItem(keptKey) ?? '[]') as string[]
    sessionStorage.removeItem(keptKey)
    const here = window.location.pathname + window.location.search
    if (hash && address === here && !window.location.hash) history.replaceState(null, '', here + hash)
  } catch {
    // nothing is kept
  }
}

restoreFragment()
const location = signal(readLocation())

function readLocation(): { path: string; query: string; fragment: string } {
  return { path: window.location.pathname, query: window.location.search, fragment: window.location.hash }
}

/** The shortest time between two changes of the history's entry, as by what is typed: Safari refuses more than 100 in 30 seconds. */
const replaceMilliseconds = 400
let replacedAt = 0
let replacing: ReturnType<typeof setTimeout> | undefined
/** What the entry is to become; undefined where it is so already. */
let unwritten: string | undefined

function writeAddress(): void {
  clearTimeout(replacing)
  replacing = undefined
  if (unwritten === undefined) return
  history.replaceState(null, '', unwritten)
  unwritten = undefined
  replacedAt = Date.now()
}

window.addEventListener('pagehide', writeAddress)
window.addEventListener('popstate', () => {
  unwritten = undefined // it was of another entry
  location.value = readLocation()
})

/** Segments of the path, decoded: /clusters/bergen is ['clusters', 'bergen']. */
export const segments = computed(() =>
  location.value.path
    .split('/')
    .filter((s) => s !== '')
    .map(decodeSegment),
)

/** All parameters of the address. */
export const params = computed(() => {
  const all = new URLSearchParams(location.value.query)
  const long = new URLSearchParams(location.value.fragment.slice(1))
  for (const name of longParams) {
    const value = long.get(name)
    if (value !== null) all.set(name, value)
  }
  return all
})

function decodeSegment(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

/** Returns the address of a page: href('clusters', 'bergen'). */
export function href(...path: string[]): string {
  return '/' + path.map(encodeURIComponent).join('/')
}

export function navigate(to: string, how: { replace?: boolean } = {}): void {
  const url = new URL(to, window.location.origin)
  if (url.origin !== window.location.origin) throw new Error('a page of another site')
  const address = url.pathname + url.search + url.hash
  if (address === location.value.path + location.value.query + location.value.fragment) return
  location.value = { path: url.pathname, query: url.search, fragment: url.hash }
  if (!how.replace) {
    writeAddress()
    history.pushState(null, '', address)
    return
  }
  unwritten = address
  const wait = replacedAt + replaceMilliseconds - Date.now()
  if (wait <= 0) writeAddress()
  else replacing ??= setTimeout(writeAddress, wait)
}

/** Returns a parameter of the address, or what it is without one. */
export function param(name: string, otherwise = ''): string {
  return params.value.get(name) ?? otherwise
}

/** Returns the address of this page with other parameters; an empty one is removed. */
export function hrefWith(changes: Record<string, string | undefined>): string {
  const short = new URLSearchParams(params.value)
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === '') short.delete(name)
    else short.set(name, value)
  }
  const long = new URLSearchParams()
  for (const name of longParams) {
    const value = short.get(name)
    short.delete(name)
    if (value !== null) long.set(name, value)
  }
  const [query, fragment] = [short.toString(), long.toString()]
  return location.value.path + (query && `?${query}`) + (fragment && `#${fragment}`)
}

/** Changes parameters of the address. What is typed replaces the entry of the history. */
export function setParams(changes: Record<string, string | undefined>, how: { replace?: boolean } = { replace: true }): void {
  navigate(hrefWith(changes), how)
}

/** Goes to a link of this site without loading the page anew. */
export function followLink(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
  const anchor = (event.target as Element | null)?.closest?.('a')
  if (!anchor || anchor.target || anchor.hasAttribute('download') || anchor.origin !== window.location.origin) return
  event.preventDefault()
  navigate(anchor.pathname + anchor.search + anchor.hash)
}
