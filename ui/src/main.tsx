import { render } from 'preact'
import { useEffect } from 'preact/hooks'
import { follow } from './live'
import { followSession, loadSession, session } from './session'
import { Shell } from './shell'
import { SignIn, Unreached } from './signin'
import './styles/tokens.css'
import './styles/base.css'
import './styles/components.css'
import './styles/shell.css'

function App() {
  const signedIn = session.value.state === 'signedIn'
  useEffect(() => {
    if (!signedIn) return undefined
    follow()
    return followSession()
  }, [signedIn])
  switch (session.value.state) {
    case 'unknown':
      return null
    case 'signedOut':
      return <SignIn />
    case 'failed':
      return <Unreached error={session.value.error} />
    case 'signedIn':
      return <Shell key={session.value.me.user} />
  }
}

render(<App />, document.getElementById('app')!)
void loadSession()
