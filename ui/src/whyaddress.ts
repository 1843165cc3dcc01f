// The parameter why of the address: the image of a cluster that the panel is about.

/** Returns the value of the parameter. */
export function whyOf(cluster: string, namespace: string, name: string): string {
  return [cluster, namespace, name].map(encodeURIComponent).join('/')
}

/** Returns what a parameter is about; nothing for what is none. */
export function parseWhy(value: string): { cluster: string; namespace: string; name: string } | undefined {
  const parts = value.split('/')
  if (parts.length !== 3) return undefined
  try {
    const [cluster, namespace, name] = parts.map(decodeURIComponent)
    return cluster && namespace && name ? { cluster, namespace, name } : undefined
  } catch {
    return undefined
  }
}
