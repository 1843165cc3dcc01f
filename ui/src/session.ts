// Who is here, and what that person may do.
import { signal } from '@preact/signals'
import type { Me, Permission } from './api'
import { getJSON, RequestError, sendJSON } from './client'

export type { Me, Permission }

export type Session =
  | { state: 'unknown' }
  /** Nobody is signed in: a token is asked for. */
  | { state: 'signedOut'; message?: string }
  | { state: 'failed'; error: RequestError }
  | { state: 'signedIn'; me: Me }

export const session = signal<Session>({ state: 'unknown' })

/** Finds out who is here. The key that `kubectl ot dashboard` put behind the # is exchanged first, and leaves the address. */
export async function loadSession(): Promise<void> {
  const key = /^#key=(.+)$/.exec(window.location.hash)?.[1]
  if (key) {
    history.replaceState(null, '', window.location.pathname + window.location.search)
    try {
      await sendJSON('POST', '/auth/key', { key })
    } catch {
      // a page that was opened before has its cookie
    }
  }
  try {
    session.value = { state: 'signedIn', me: await getJSON<Me>('/auth/me') }
  } catch (err) {
    refuse(err)
  }
}

function refuse(err: unknown): void {
  const error = err instanceof RequestError ? err : new RequestError(0, String(err))
  session.value = error.status === 401 ? { state: 'signedOut' } : { state: 'failed', error }
}

/** Signs in with a bearer token. The address stays. */
export async function signIn(token: string): Promise<void> {
  await sendJSON('POST', '/auth/login', { token: token.trim() })
  await loadSession()
}

export async function signOut(): Promise<void> {
  await sendJSON('POST', '/auth/logout')
  session.value = { state: 'signedOut' }
}

/** Takes note of an answer that says that the session has ended. */
export function noteRefusal(error: RequestError): void {
  if (error.status === 401 && session.value.state === 'signedIn') session.value = { state: 'signedOut', message: 'Your session has ended.' }
}

/** Reports whether the person may do something; false as long as that is unknown. */
export function may(verb: string, resource: string): boolean {
  return session.value.state === 'signedIn' && session.value.me.may.some((m) => m.allowed && m.verb === verb && m.resource === resource)
}

/** Returns the role that would allow the person something; undefined where none is known. */
export function roleFor(verb: string, resource: string): string | undefined {
  if (session.value.state !== 'signedIn') return undefined
  return session.value.me.may.find((m) => m.verb === verb && m.resource === resource)?.role || undefined
}
