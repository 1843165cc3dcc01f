// Who is here, and what that person may do.
import { computed, effect, signal } from '@preact/signals'
import { announce } from './announce'
import type { Me, Permission } from './api'
import { getJSON, RequestError, sendJSON } from './client'
import { formatCount } from './format'

export type { Me, Permission }

export type Session =
  | { state: 'unknown' }
  /** Nobody is signed in: a token is asked for. */
  | { state: 'signedOut'; message?: string; mode?: Me['mode'] }
  | { state: 'failed'; error: RequestError }
  | { state: 'signedIn'; me: Me }

export const session = signal<Session>({ state: 'unknown' })

/** Who is signed in; empty for nobody. */
export const person = computed(() => (session.value.state === 'signedIn' ? session.value.me.user : ''))

/** Calls a function when somebody signs out, or another person is signed in. What was asked for as the one before is not shown to the next. */
export function onOtherPerson(listener: () => void): void {
  let before = person.peek()
  effect(() => {
    if (before !== '' && person.value !== before) listener()
    before = person.value
  })
}

/** Why the last try to sign out has failed; empty for none. */
export const signOutFailure = signal('')

/** Finds out who is here. The key that `kubectl ot dashboard` put behind the # is exchanged first, and leaves the address. */
export async function loadSession(): Promise<void> {
  const key = /^#key=(.+)$/.exec(window.location.hash)?.[1]
  let refusal: string | undefined
  if (key) {
    storeMode('local')
    history.replaceState(null, '', window.location.pathname + window.location.search)
    try {
      await sendJSON('POST', '/auth/key', { key })
    } catch (err) {
      // A page that was opened before has its cookie.
      refusal = err instanceof RequestError ? err.message : undefined
    }
  }
  try {
    const me = await getJSON<Me>('/auth/me')
    storeMode(me.mode)
    session.value = { state: 'signedIn', me }
  } catch (err) {
    const error = err instanceof RequestError ? err : new RequestError(0, String(err))
    session.value = error.status === 401 ? { state: 'signedOut', mode: storedMode(), message: refusal ?? endedMessage() } : { state: 'failed', error }
  }
}

// How this tab was signed in is known after the session has ended, too.
const modeKey = 'ot-fleet-mode'

function storeMode(mode: Me['mode']): void {
  try {
    sessionStorage.setItem(modeKey, mode)
  } catch {
    // storage may be switched off: a token is asked for
  }
}

function storedMode(): Me['mode'] | undefined {
  try {
    const mode = sessionStorage.getItem(modeKey)
    return mode === 'local' || mode === 'token' || mode === 'proxy' ? mode : undefined
  } catch {
    return undefined
  }
}

function endedMessage(): string | undefined {
  return session.value.state === 'signedIn' ? 'Your session has ended.' : undefined
}

/** Signs in with a bearer token. The address stays. */
export async function signIn(token: string): Promise<void> {
  await sendJSON('POST', '/auth/login', { token: token.trim() })
  await loadSession()
}

export async function signOut(): Promise<void> {
  try {
    await sendJSON('POST', '/auth/logout')
  } catch (err) {
    signOutFailure.value = `Signing out failed, and this browser is still signed in: ${err instanceof RequestError ? err.message : String(err)}`
    announce(signOutFailure.value)
    return
  }
  signOutFailure.value = ''
  session.value = { state: 'signedOut', mode: 'token', message: 'You are signed out.' }
}

/** Takes note of an answer that says that the session has ended. */
export function noteRefusal(error: RequestError): void {
  if (error.status === 401 && session.value.state === 'signedIn') session.value = { state: 'signedOut', mode: session.value.me.mode, message: endedMessage() }
}

/** Asks again who is here: rights are given and taken while a page is open, and a proxy renews its tokens. */
export async function refreshSession(): Promise<void> {
  if (session.value.state !== 'signedIn') return
  try {
    const me = await getJSON<Me>('/auth/me')
    if (session.value.state === 'signedIn' && JSON.stringify(me) !== JSON.stringify(session.value.me)) session.value = { state: 'signedIn', me }
  } catch (err) {
    if (err instanceof RequestError) noteRefusal(err) // others are said where they matter
  }
}

const refreshMilliseconds = 30_000

/** Keeps what is known of the person fresh while the page is seen. Returns how to end that. */
export function followSession(): () => void {
  const timer = setInterval(() => {
    if (!document.hidden) void refreshSession()
  }, refreshMilliseconds)
  return () => clearInterval(timer)
}

/** Says that a session ends soon. A live region has it: it changes once a minute, and not with each second. */
export function describeEnd(left: number): string {
  return left > 0 ? `Your session ends in less than ${formatCount(Math.ceil(left / 60_000), 'minute')}.` : 'Your session is ending.'
}

/** Reports whether the person may do something; false as long as that is unknown. */
export function may(verb: string, resource: string): boolean {
  return session.value.state === 'signedIn' && session.value.me.may.some((m) => m.allowed && m.verb === verb && m.resource === resource)
}

/** Returns the role that would allow the person something; undefined where none is known. The API server's words for a right differ from those that the rights are listed by. */
export function roleFor(verb: string, resource: string): string | undefined {
  if (session.value.state !== 'signedIn') return undefined
  const listed = session.value.me.may.filter((m) => m.resource === resource && m.role)
  const verbs = [verb, ...(verb === 'patch' ? ['update'] : []), ...(verb === 'create' || verb === 'patch' ? ['approve'] : [])]
  for (const v of verbs) {
    const found = listed.find((m) => m.verb === v)
    if (found) return found.role
  }
  return undefined
}
