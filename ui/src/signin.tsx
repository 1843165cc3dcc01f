// A bearer token is asked for. It is sent once, and kept in a cookie that no script reads.
import { useSignal } from '@preact/signals'
import { RequestError } from './client'
import { Command } from './components/command'
import { session, signIn } from './session'

export function SignIn() {
  const token = useSignal('')
  const error = useSignal('')
  const busy = useSignal(false)
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault()
    busy.value = true
    error.value = ''
    try {
      await signIn(token.value)
      token.value = ''
    } catch (err) {
      error.value = err instanceof RequestError ? err.message : String(err)
    } finally {
      busy.value = false
    }
  }
  const message = session.value.state === 'signedOut' ? session.value.message : undefined
  return (
    <main class="signin">
      <h1>OT Fleet</h1>
      {message && <p role="status">{message}</p>}
      <form onSubmit={(event) => void submit(event)}>
        <label for="token">Bearer token</label>
        <input id="token" type="password" autocomplete="off" spellcheck={false} required value={token.value} aria-describedby="token-help" onInput={(event) => (token.value = event.currentTarget.value)} />
        <p id="token-help" class="muted">
          A token that the hub's API server accepts. You see and may do what its rights say.
        </p>
        {error.value && (
          <p class="banner banner-bad" role="alert">
            {error.value}
          </p>
        )}
        <button type="submit" class="button button-primary" disabled={busy.value}>
          Sign in
        </button>
      </form>
      <Command label="Without a token, with your kubeconfig:" text="kubectl ot dashboard" />
    </main>
  )
}
