package override

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/specvalidation"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxInvalidBytes bounds what is stored and printed.
const maxInvalidBytes = 1024

var word = regexp.MustCompile(`[A-Za-z]+`)

// explainInvalid says which rule of a VMDiskImage the spec breaks, by which overrides, and what to
// do; empty where it breaks none.
func (e *Effective) explainInvalid() string {
	problems, err := specvalidation.FindProblems(&e.Spec)
	switch {
	case err != nil:
		return v1alpha1.SanitizeText(fmt.Sprintf("the image of this cluster cannot be checked: %v; report this as a defect", err), maxInvalidBytes)
	case len(problems) == 0:
		return ""
	}
	message := problems[0].Message
	field, _, _ := strings.Cut(problems[0].Field, "[")
	field, _, _ = strings.Cut(field, ".")
	if field != "" && !strings.Contains(message, field) {
		message = problems[0].Field + ": " + message
	}
	text := fmt.Sprintf("%s make%s no valid image of the template: %s", e.listOverrides(), pluralOf(e.From), message)
	if origins := e.listOrigins(field, message); origins != "" {
		text += " (" + origins + ")"
	}
	return v1alpha1.SanitizeText(text+"; correct the override, where an empty text or list removes a field of the template", maxInvalidBytes)
}

// pluralOf ends the verb for one override.
func pluralOf(from map[string]int) string {
	if len(indexesOf(from)) == 1 {
		return "s"
	}
	return ""
}

func indexesOf(from map[string]int) []int {
	return slices.Compact(slices.Sorted(maps.Values(from)))
}

func (e *Effective) listOverrides() string {
	var names []string
	for _, index := range indexesOf(e.From) {
		names = append(names, Name(index))
	}
	return cmp.Or(strings.Join(names, " and "), "spec.overrides")
}

// Name returns how an override of a FleetDiskImage is called in sentences.
func Name(index int) string { return fmt.Sprintf("spec.overrides[%d]", index) }

// listOrigins says where each field that a message names comes from.
func (e *Effective) listOrigins(field, message string) string {
	named := word.FindAllString(message, -1)
	var origins []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(e.Spec.UsedFields(), slices.Collect(maps.Keys(e.From))...)))) {
		if name != field && (name == "name" || !slices.Contains(named, name)) {
			continue
		}
		origin := "the template"
		if index, ok := e.From[name]; ok {
			origin = Name(index)
		}
		origins = append(origins, name+" is from "+origin)
	}
	return strings.Join(origins, ", ")
}
