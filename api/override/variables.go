package override

import (
	"regexp"
	"slices"
)

// variable is one of the closed set that a url may have. The CRD refuses others.
var variable = regexp.MustCompile(`\$\{(cluster\.name|labels\.([^}]+))\}`)

// expand puts the values of a cluster into a url. The value of a label is at most 63 letters,
// digits, -, _ and ., so that it adds no separator of a URL. A label without a value is missing.
func expand(url, cluster string, labels map[string]string) (expanded string, missing []string) {
	expanded = variable.ReplaceAllStringFunc(url, func(text string) string {
		key := variable.FindStringSubmatch(text)[2]
		if key == "" {
			return cluster
		}
		if labels[key] == "" {
			missing = append(missing, key)
			return text
		}
		return labels[key]
	})
	slices.Sort(missing)
	return expanded, slices.Compact(missing)
}
