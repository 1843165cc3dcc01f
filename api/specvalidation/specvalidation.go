// Package specvalidation checks VMDiskImageSpecs that no API server has checked yet, by the rules
// of the CRD.
package specvalidation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/charts"
)

// The API server's limits on what rules may cost.
const (
	celCallLimit = 1_000_000
	celBudget    = 10_000_000
)

// Problem is a rule that a spec breaks. It has no value of the spec, which may be secret.
type Problem struct {
	// Field by its path, as in url or extraHeaders[0]; empty where the rule is about several.
	Field string
	// Message of the rule.
	Message string
}

// maxKnown bounds the specs whose problems are remembered, about 100 bytes each.
const maxKnown = 1 << 14

// known has the problems of specs by the hash of their JSON: a check takes half a millisecond, and
// the same specs are checked at each change of a rollout, in up to a thousand clusters.
var known = struct {
	sync.Mutex
	problems map[[sha256.Size]byte][]Problem
}{problems: map[[sha256.Size]byte][]Problem{}}

// FindProblems returns the rules of the CRD that a spec breaks, by field. The result is shared and
// must not be changed.
func FindProblems(spec *v1alpha1.VMDiskImageSpec) ([]Problem, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(text)
	known.Lock()
	problems, ok := known.problems[key]
	known.Unlock()
	if ok {
		return problems, nil
	}
	if problems, err = findProblems(spec); err != nil {
		return nil, err
	}
	known.Lock()
	defer known.Unlock()
	if len(known.problems) >= maxKnown {
		clear(known.problems)
	}
	known.problems[key] = problems
	return problems, nil
}

func findProblems(spec *v1alpha1.VMDiskImageSpec) (problems []Problem, err error) {
	rules, err := load()
	if err != nil {
		return nil, err
	}
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, err
	}
	// An empty path would print as <nil>.
	root := field.NewPath("spec")
	errs := validation.ValidateCustomResource(root, stored, rules.values)
	errs = append(errs, listtype.ValidateListSetsAndMaps(root, rules.structural, stored)...)
	// Rules assume a valid structure, as on the API server.
	if len(errs) == 0 {
		errs, _ = rules.cel.Validate(context.Background(), root, rules.structural, stored, nil, celBudget)
	}
	for _, problem := range errs {
		message := problem.Detail
		if problem.Type != field.ErrorTypeInvalid {
			message = strings.TrimSuffix(problem.Type.String()+": "+problem.Detail, ": ")
		}
		path := strings.TrimPrefix(strings.TrimPrefix(problem.Field, root.String()), ".")
		problems = append(problems, Problem{Field: path, Message: message})
	}
	// Fields are checked in the order of a map, the rules of each in their own.
	slices.SortStableFunc(problems, func(a, b Problem) int { return strings.Compare(a.Field, b.Field) })
	return problems, nil
}

type specRules struct {
	structural *structuralschema.Structural
	values     validation.SchemaValidator
	cel        *cel.Validator
}

// load compiles the rules once, when the first spec is checked.
var load = sync.OnceValues(func() (*specRules, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(charts.VMDiskImageCRD, &crd); err != nil {
		return nil, fmt.Errorf("reading the built-in CRD of VMDiskImages: %w", err)
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&schema, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &specRules{structural, values, cel.NewValidator(structural, false, celCallLimit)}, nil
})
