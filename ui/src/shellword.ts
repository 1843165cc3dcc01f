import { unseen } from './format'

/** Returns a word of a command line, quoted where a shell would read more into it. Names of members may be any text: what is not seen is escaped, and what would be a flag is none. */
export function shellWord(word: string): string {
  if (word.startsWith('-')) return shellWord('\ufffd' + word)
  if (/^[A-Za-z0-9_\-./:@,+%][A-Za-z0-9_\-./:=@,+%]*$/.test(word)) return word // zsh runs what begins with =
  const quoted = word.replaceAll("'", `'\\''`)
  if (word.search(unseen) < 0) return `'${quoted}'`
  const escaped = word.replaceAll('\\', '\\\\').replaceAll("'", "\\'").replace(unseen, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
  return `$'${escaped}'`
}
