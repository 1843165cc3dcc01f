// What is around every page.
import { effect, useSignal } from '@preact/signals'
import { Component, type ComponentChildren, type ComponentType } from 'preact'
import { useEffect } from 'preact/hooks'
import { announcement } from './announce'
import { ConnectionBanner, Loading } from './components/states'
import { Finished } from './components/write'
import { plainText, timeZone } from './format'
import { pages, type PageEntry } from './pages'
import NotFound from './pages/notfound'
import { followLink, segments } from './route'
import { Search } from './search'
import { session, signOut } from './session'
import { chooseTheme, theme, type Choice } from './theme'
import { WhyPanel } from './why'

export function Shell() {
  const path = segments.value[0] ?? ''
  const entry = pages.find((p) => p.path === path)
  return (
    <div class="shell" onClick={followLink}>
      <a class="skip-link" href="#main" onClick={focusMain}>
        Skip to the page
      </a>
      <header class="bar">
        <a class="bar-name" href="/">
          OT Fleet
        </a>
        <nav aria-label="Pages">
          {pages
            .filter((p) => p.label)
            .map((p) => (
              <a key={p.path} href={'/' + p.path} aria-current={p.path === path ? 'page' : undefined}>
                {p.label}
              </a>
            ))}
        </nav>
        <div class="bar-end">
          <Search />
          <ThemeSwitch />
          <Person />
        </div>
      </header>
      <ConnectionBanner />
      <main id="main" tabIndex={-1}>
        {entry ? <LoadedPage key={segments.value.join('/')} entry={entry} of={segments.value[1]} /> : <NotFound />}
      </main>
      <WhyPanel />
      <Finished />
      <footer class="foot muted">Times are of {timeZone()}.</footer>
      <div class="visually-hidden" role="status" aria-live="polite">
        {announcement.value}
      </div>
    </div>
  )
}

function focusMain(event: MouseEvent): void {
  event.preventDefault()
  document.getElementById('main')?.focus()
}

let navigated = false

function LoadedPage({ entry, of }: { entry: PageEntry; of?: string }) {
  const loaded = useSignal<ComponentType | 'failed' | undefined>(undefined)
  useEffect(() => {
    document.title = [of && plainText(of, 100), entry.path !== '' && entry.title, 'OT Fleet'].filter(Boolean).join(' · ')
    entry.load().then(
      (module) => (loaded.value = module.default as never),
      () => (loaded.value = 'failed'),
    )
    return () => void (navigated = true)
  }, [entry])
  // The heading of a page that was gone to is read first.
  const Content = loaded.value
  useEffect(() => {
    if (Content && Content !== 'failed' && navigated) document.querySelector<HTMLElement>('main h1')?.focus()
  }, [Content])
  if (Content === undefined) return <Loading />
  if (Content === 'failed') return <Broken>This page could not be loaded. The hub may have been upgraded meanwhile.</Broken>
  return (
    <ErrorBoundary>
      <Content />
    </ErrorBoundary>
  )
}

/** ErrorBoundary keeps the rest of the dashboard in use where a page cannot be drawn, as from answers of a hub that is older than this page. */
class ErrorBoundary extends Component<{ children: ComponentChildren }, { failed: boolean }> {
  override state = { failed: false }

  static override getDerivedStateFromError(): { failed: boolean } {
    return { failed: true }
  }

  override componentDidCatch(error: unknown): void {
    console.error(error)
  }

  override render() {
    if (this.state.failed) return <Broken>This page could not be drawn from what the hub answered: it may be older or newer than the dashboard. Profile shows both versions.</Broken>
    return this.props.children
  }
}

function Broken({ children }: { children: ComponentChildren }) {
  return (
    <div class="banner banner-bad" role="alert">
      <p>{children}</p>
      <button type="button" class="button" onClick={() => window.location.reload()}>
        Load anew
      </button>
    </div>
  )
}

const choices: { choice: Choice; label: string }[] = [
  { choice: 'system', label: 'As the system' },
  { choice: 'light', label: 'Light' },
  { choice: 'dark', label: 'Dark' },
]

function ThemeSwitch() {
  return (
    <label class="select-quiet">
      <span class="visually-hidden">Colours</span>
      <select value={theme.choice.value} onChange={(event) => chooseTheme(event.currentTarget.value as Choice)}>
        {choices.map((c) => (
          <option key={c.choice} value={c.choice}>
            {c.label}
          </option>
        ))}
      </select>
    </label>
  )
}

function Person() {
  if (session.value.state !== 'signedIn') return null
  const { user, signOut: canSignOut } = session.value.me
  return (
    <>
      <a class="bar-person" href="/profile" aria-current={segments.value[0] === 'profile' ? 'page' : undefined}>
        {plainText(user, 40)}
      </a>
      {canSignOut && (
        <button type="button" class="button button-quiet" onClick={() => void signOut()}>
          Sign out
        </button>
      )}
    </>
  )
}

effect(() => {
  document.documentElement.classList.toggle('signed-out', session.value.state === 'signedOut')
})
