import { expect, test, vi } from 'vitest'
import type { Me } from '../api'

vi.stubGlobal('window', { location: { hash: '', pathname: '/', search: '' }, addEventListener: () => undefined })
const { session } = await import('../session')
const { TextWithTimes } = await import('./time')

test('a command within a text with times acts on the hub of the page', () => {
  session.value = { state: 'signedIn', me: { context: 'prod', hubNamespace: 'ot-hub', kubeconfig: '/k' } as Me }
  const drawn = TextWithTimes({ text: 'kubectl ot doctor says more; since 2026-03-02T16:31:00Z kubectl create rolebinding a' })
  const parts = drawn.props.children as unknown as (string | { props: { at: string } })[]
  expect(parts.map((part) => (typeof part === 'string' ? part : part.props.at))).toEqual([
    'kubectl ot --kubeconfig /k --hub prod doctor says more; since ', '2026-03-02T16:31:00Z', ' kubectl --kubeconfig /k create rolebinding a',
  ])
})
