package main

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// namespaceList is a flag of namespaces, separated by commas.
type namespaceList []string

// String implements flag.Value.
func (l *namespaceList) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *namespaceList) Set(text string) error {
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" || slices.Contains(names, name) {
			continue
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("%q is no name of a namespace: %s", name, strings.Join(problems, "; "))
		}
		names = append(names, name)
	}
	*l = names
	return nil
}

// cacheConfigs restricts a cache to the namespaces; nil, for all, where there are none.
func (l *namespaceList) cacheConfigs() map[string]cache.Config {
	if len(*l) == 0 {
		return nil
	}
	configs := map[string]cache.Config{}
	for _, name := range *l {
		configs[name] = cache.Config{}
	}
	return configs
}
