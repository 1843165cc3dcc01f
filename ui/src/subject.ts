// What an answer is about, whatever part of it is shown.

// Lists, whose parameters all say what part of them is shown, and such parameters of other answers.
const lists = new Set(['/fleet/v1/members', '/fleet/v1/images', '/fleet/v1/rollouts', '/fleet/v1/transfers'])
const listParameters = ['search', 'state', 'phase', 'sort', 'order', 'offset', 'limit', 'after', 'page', 'selector', 'group']

/** Returns what an answer is about: two paths with the same subject show parts of the same. */
export function subjectOf(path: string): string {
  const [before, query] = path.split('?', 2) as [string, string?]
  if (query === undefined || lists.has(before)) return before
  const params = new URLSearchParams(query)
  for (const name of listParameters) params.delete(name)
  return `${before}?${params}`
}
