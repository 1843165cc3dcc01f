import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

// What a title says is on hover alone: on something that can have the focus, it is said there too.
test('no title on what cannot have the focus', () => {
  const found: string[] = []
  for (const file of readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.tsx')) continue
    const text = readFileSync(join(import.meta.dirname, file), 'utf8')
    for (const { index } of text.matchAll(/\stitle=/g)) {
      const tag = [...text.slice(0, index + 1).matchAll(/<[A-Za-z]+\s/g)].at(-1)?.index ?? 0
      const element = text.slice(tag, text.indexOf('\n', index))
      // A component's property is something else.
      if (/^<[a-z]/.test(element) && !element.includes('tabIndex=')) found.push(`${file}: ${text.slice(index - 60, index + 40)}`)
    }
  }
  // A tile's link, or its field, has the same as its label.
  expect(found.filter((f) => !f.startsWith(join('components', 'treemap.tsx')))).toEqual([])
})
