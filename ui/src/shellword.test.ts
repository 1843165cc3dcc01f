import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { shellWord } from './shellword'

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
