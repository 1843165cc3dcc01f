// A bearer token is asked for. It is sent once, and kept in a cookie that no script reads.
import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { RequestError } from './client'
import { Command } from './components/command'
import { Problem } from './components/states'
import { reload } from './route'
import { loadSession, session, signIn } from './session'

export function SignIn() {
  const { message, mode } = session.value.state === 'signedOut' ? session.value : {}
  useEffect(() => {
    document.title = 'Sign in · OT Fleet'
  }, [])
  return (
    <main class="signin">
      <div class="signin-card">
        <h1>OT Fleet</h1>
        {message && (
          <p class="banner banner-attention" role="status">
            {message}
          </p>
        )}
        {mode === 'local' ? <LocalSignIn /> : mode === 'proxy' ? <ProxySignIn /> : <TokenSignIn />}
      </div>
      <p class="muted signin-foot">You come back to {window.location.pathname === '/' ? 'the fleet' : <code>{window.location.pathname}</code>} as you left it.</p>
    </main>
  )
}

function TokenSignIn() {
  const token = useSignal('')
  const error = useSignal<string | undefined>(undefined)
  const busy = useSignal(false)
  const field = useRef<HTMLInputElement>(null)
  useEffect(() => field.current?.focus(), [])
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault()
    if (busy.value) return
    if (token.value.trim() === '') {
      error.value = 'Paste a token first.'
      field.current?.focus()
      return
    }
    busy.value = true
    error.value = undefined
    try {
      await signIn(token.value)
      token.value = ''
    } catch (err) {
      error.value = err instanceof RequestError ? err.message : String(err)
      field.current?.focus()
    } finally {
      busy.value = false
    }
  }
  return (
    <>
      <form onSubmit={(event) => void submit(event)}>
        <label for="token">Bearer token</label>
        <input
          ref={field}
          id="token"
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={token.value}
          aria-invalid={error.value !== undefined}
          aria-describedby="token-help token-error"
          onInput={(event) => (token.value = event.currentTarget.value)}
        />
        <p id="token-help" class="muted">
          One that the hub's API server accepts. You see and may do what its rights allow, and nothing is done in another name.
        </p>
        <div id="token-error" role="alert">
          {error.value && <p class="banner banner-bad">{error.value}</p>}
        </div>
        <button type="submit" class="button button-primary" aria-busy={busy.value}>
          {busy.value ? 'Signing in…' : 'Sign in'}
        </button>
      </form>
      <hr />
      <Command label="A token of a ServiceAccount:" text="kubectl create token NAME --namespace NAMESPACE" />
      <Command label="Without a token, by your kubeconfig:" text="kubectl ot dashboard" />
    </>
  )
}

function LocalSignIn() {
  return (
    <>
      <p>This dashboard acts by a kubeconfig. Open the address that the command printed, or start it again:</p>
      <Command text="kubectl ot dashboard" />
      <button type="button" class="button" onClick={() => void loadSession()}>
        Try again
      </button>
    </>
  )
}

function ProxySignIn() {
  return (
    <>
      <p>The proxy in front of the dashboard signs you in. Load the page anew to go through it.</p>
      <button type="button" class="button button-primary" onClick={reload}>
        Load anew
      </button>
      <Command label="Without the proxy, by your kubeconfig:" text="kubectl ot dashboard" />
    </>
  )
}

/** Unreached is shown where it is not known who is here: the hub did not say. It asks again by itself. */
export function Unreached({ error }: { error: RequestError }) {
  useEffect(() => {
    if (error.retryAfter === undefined) return undefined
    const timer = setTimeout(() => void loadSession(), Math.min(error.retryAfter, 60) * 1000)
    return () => clearTimeout(timer)
  }, [error])
  return (
    <main class="signin">
      <div class="signin-card">
        <h1>OT Fleet</h1>
        <Problem error={error} retry={() => void loadSession()} />
        <Command label="What can be said without it:" text="kubectl ot status" />
      </div>
    </main>
  )
}
