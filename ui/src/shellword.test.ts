import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { flagsOfHub, shellWord, withFlags, withHub } from './shellword'

describe('shellWord', () => {
  it.each([
    ['bergen', 'bergen'],
    ['vmdi-farm/ubuntu-2.1.0', 'vmdi-farm/ubuntu-2.1.0'],
    ['x;curl evil|sh', "'x;curl evil|sh'"],
    ["it's $(here) `too`", "'it'\\''s $(here) `too`'"],
    ['', "''"],
    ['=curl', "'=curl'"],
    ['a=b', 'a=b'],
    ['a\u202eb', "$'a\\u202eb'"],
    ['a\u001b[31m\n', "$'a\\u001b[31m\\u000a'"],
    ["\u200b'\\", "$'\\u200b\\'\\\\'"],
    ['--kubeconfig=/tmp/evil', "'\ufffd--kubeconfig=/tmp/evil'"],
  ])('%j is %s', (word, want) => expect(shellWord(word)).toBe(want))
})

describe('withHub', () => {
  const hub = { context: 'prod eu', hubNamespace: 'ot-hub' }
  it.each([
    ['kubectl ot rollout resume ubuntu', hub, "kubectl ot rollout resume ubuntu --hub 'prod eu'"],
    ['kubectl ot rollout resume ubuntu', undefined, 'kubectl ot rollout resume ubuntu'],
    ['kubectl ot rollout resume ubuntu', { hubNamespace: 'fleet' }, 'kubectl ot rollout resume ubuntu --hub-namespace fleet'],
    ['kubectl ot quarantine lab --reason \'--hub staging\'', hub, "kubectl ot quarantine lab --reason '--hub staging' --hub 'prod eu'"],
    ['kubectl ot status', { ...hub, kubeconfig: '/home/anna/prod.yaml' }, "kubectl ot status --kubeconfig /home/anna/prod.yaml --hub 'prod eu'"],
    ['kubectl -n a patch configmap b --patch=\'{}\'', hub, "kubectl --context 'prod eu' -n a patch configmap b --patch='{}'"],
    ['kubectl --context bergen -n a delete secret b', hub, 'kubectl --context bergen -n a delete secret b'],
    ['kubectl --context bergen -n a delete secret b', { ...hub, kubeconfig: '/k' }, 'kubectl --kubeconfig /k --context bergen -n a delete secret b'],
    ['apiVersion: v1', hub, 'apiVersion: v1'],
    ['apiVersion: v1', { ...hub, kubeconfig: '/k' }, 'apiVersion: v1'],
  ])('%s of %j', (line, me, want) => expect(withHub(line, me)).toBe(want))
})

describe('withFlags', () => {
  const flags = { ot: ['--hub', "'pro d'"], hub: ['--context', 'prod'], any: ['--kubeconfig', '/k'] }
  // Package render of kubectl ot reads the same file.
  const file = new URL('../../cli/render/testdata/completed.json', import.meta.url)
  const all = JSON.parse(readFileSync(file, 'utf8')) as { text: string; want: string }[]
  it.each(all)('$text', ({ text, want }) => {
    expect(withFlags(text, flags)).toBe(want)
    expect(withFlags(want, flags), 'it is shown through another message').toBe(want)
    expect(withFlags(text, flagsOfHub(undefined)), 'the page of a hub, which knows no context').toBe(text)
  })
})

it.each([
  [undefined, { ot: [], hub: [], any: [] }],
  [{ hubNamespace: 'ot-hub' }, { ot: [], hub: [], any: [] }],
  [{ hubNamespace: 'fleet' }, { ot: ['--hub-namespace', 'fleet'], hub: [], any: [] }],
  [{ context: 'pro d', hubNamespace: 'ot-hub', kubeconfig: '/k' }, { ot: ['--kubeconfig', '/k', '--hub', "'pro d'"], hub: ['--context', "'pro d'"], any: ['--kubeconfig', '/k'] }],
])('the flags of %j', (me, want) => expect(flagsOfHub(me)).toEqual(want))

// Each message passes formatMessage: a command in it would act on whatever context is the current one.
it('messages are shown by formatMessage', () => {
  const files = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((f) => f.endsWith('.tsx'))
  const others = files.filter((f) => /plainText\((?:[^()]*[mM]essage|t\.text|effect\b)|[^=$]\{(?:[a-zA-Z.!?]*\.message|refusal\.text|blocked)\}/.test(readFileSync(join(import.meta.dirname, f), 'utf8')))
  expect(others).toEqual([])
})

// Each command to copy passes forHub: one that does not acts on whatever context is the current one.
it('commands are copied by Command and CopyCommand alone', () => {
  const files = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((f) => f.endsWith('.tsx'))
  const others = files.filter((f) => f !== join('components', 'command.tsx') && readFileSync(join(import.meta.dirname, f), 'utf8').includes('<CopyButton'))
  expect(others, 'YAML and the text of a pull request').toEqual([join('pages', 'policy', 'blast.tsx')])
})

// Each name that is put into a command goes through shellWord: it may be a member's text.
describe('commands', () => {
  const files = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((f) => /\.tsx?$/.test(f) && !f.endsWith('.test.ts'))
  // What these hold was made by shellWord.
  const quoted = new Set(['flags', 'word', 'name', 'policy'])
  it.each(files)('%s', (file) => {
    const text = readFileSync(join(import.meta.dirname, file), 'utf8')
    for (const [command] of text.matchAll(/`kubectl ot [^`]*`/g)) {
      for (const [, inner] of command.matchAll(/\$\{([^}]*)\}/g)) expect(inner!.includes('shellWord(') || quoted.has(inner!), `${command}: ${inner}`).toBe(true)
    }
  })
})
