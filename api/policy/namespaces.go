package policy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// KeyAllowedNamespaces names the namespaces in which a hub's plan may create and change
// images. Only a cluster's own ConfigMap can set it; see ParseConfigMap.
const KeyAllowedNamespaces = "allowedNamespaces"

// maxNamespaces bounds the patterns, which are stored in each ledger and report.
const maxNamespaces = 64

// Namespaces are names of namespaces, or patterns in which * stands for any characters.
// Without any, all namespaces are allowed.
type Namespaces []string

var namespacePattern = regexp.MustCompile(`^[a-z0-9*]([-a-z0-9*]{0,61}[a-z0-9*])?$`)

// Allow reports whether a namespace is allowed.
func (n Namespaces) Allow(namespace string) bool {
	return len(n) == 0 || slices.ContainsFunc(n, func(pattern string) bool {
		matched, err := path.Match(pattern, namespace)
		return err == nil && matched
	})
}

func (n Namespaces) marshal() string { return strings.Join(n, ", ") }

// unmarshal reads names and patterns that are separated by commas or white space.
func (n *Namespaces) unmarshal(text string) error {
	patterns := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })
	switch {
	case len(patterns) == 0:
		return errors.New("it names no namespace: name at least one, as in farm, ci-*, or remove the key to allow all")
	case len(patterns) > maxNamespaces:
		return fmt.Errorf("there are %d namespaces: the maximum is %d; use patterns such as ci-*", len(patterns), maxNamespaces)
	}
	for _, pattern := range patterns {
		if !namespacePattern.MatchString(pattern) {
			return fmt.Errorf("%.80q must be the name of a namespace, or a pattern such as ci-*", pattern)
		}
	}
	*n = patterns
	return nil
}
