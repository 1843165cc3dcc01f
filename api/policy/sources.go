package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
)

// Keys that only a hub's plan may set; see ParseConfigMap.
const (
	// KeySafeConcurrency is the share that needs no grant. Its presence makes the
	// cluster use grants.
	KeySafeConcurrency = "safeConcurrency"
	// KeyFleetSources lists the groups of sources with their own budget.
	KeyFleetSources = "fleetSources"
)

// maxSourcesBytes bounds the size of the groups in each plan and report.
const maxSourcesBytes = 8192

// Source is a group of hosts that images are downloaded from.
type Source struct {
	Name string `json:"name"`
	// Hosts are names, or *.suffix for all subdomains of suffix.
	Hosts []string `json:"hosts"`
}

// Sources are the groups with their own budget. A host belongs to the first group that
// matches it.
type Sources []Source

// GroupOfHost returns the group of a host, as in a URL without its port.
func (s Sources) GroupOfHost(host string) (name string, found bool) {
	host = normalizeHost(host)
	for _, group := range s {
		for _, pattern := range group.Hosts {
			if matchesHost(normalizeHost(pattern), host) {
				return group.Name, true
			}
		}
	}
	return "", false
}

// GroupOrOther returns the group of a host; v1alpha1.SourceOther if it is in none.
func (s Sources) GroupOrOther(host string) string {
	if name, found := s.GroupOfHost(host); found {
		return name
	}
	return v1alpha1.SourceOther
}

// GroupOfURL returns the group of a URL's host. An invalid URL is in none.
func (s Sources) GroupOfURL(text string) (name string, found bool) {
	if len(s) == 0 {
		return "", false
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return "", false
	}
	return s.GroupOfHost(u.Hostname())
}

// Equal reports whether two lists are the same.
func (s Sources) Equal(o Sources) bool {
	return slices.EqualFunc(s, o, func(a, b Source) bool { return a.Name == b.Name && slices.Equal(a.Hosts, b.Hosts) })
}

// Validate returns the first error in the groups.
func (s Sources) Validate() error {
	if len(s) > v1alpha1.MaxSourceGroups {
		return fmt.Errorf("there are %d groups: the maximum is %d", len(s), v1alpha1.MaxSourceGroups)
	}
	names := map[string]bool{}
	for i, group := range s {
		switch {
		case len(validation.IsDNS1123Label(group.Name)) > 0:
			return fmt.Errorf("[%d].name: %q must consist of a-z, 0-9 and -", i, group.Name)
		case names[group.Name]:
			return fmt.Errorf("[%d].name: %s is not unique", i, group.Name)
		case len(group.Hosts) == 0:
			return fmt.Errorf("[%d].hosts: add at least one host", i)
		}
		names[group.Name] = true
		for j, pattern := range group.Hosts {
			if !isHostPattern(pattern) {
				return fmt.Errorf("[%d].hosts[%d]: %q must be a host, as in images.example.com, or *.suffix, without port and path", i, j, pattern)
			}
		}
	}
	if n := len(s.marshal()); n > maxSourcesBytes {
		return fmt.Errorf("names and hosts have %d bytes in total: the maximum is %d", n, maxSourcesBytes)
	}
	return nil
}

func isHostPattern(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	return len(validation.IsDNS1123Subdomain(strings.TrimPrefix(normalizeHost(text), "*."))) == 0
}

// matchesHost reports whether a pattern, a name or *.suffix, matches a host; both
// normalized.
func matchesHost(pattern, host string) bool {
	below, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return host == pattern
	}
	return len(host) > len(below) && strings.HasSuffix(host, below)
}

func normalizeHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

func (s Sources) marshal() string {
	if len(s) == 0 {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(text)
}

func (s *Sources) unmarshal(text string) error {
	*s = nil
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if err := yamlalias.Check([]byte(text)); err != nil {
		return err
	}
	// Unknown fields are ignored: they may be for a newer agent.
	if err := yaml.Unmarshal([]byte(text), s); err != nil {
		return errors.New("it is not a list of groups with name and hosts")
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if len(*s) == 0 {
		*s = nil
	}
	return nil
}
