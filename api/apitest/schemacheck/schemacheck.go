// Package schemacheck checks objects against the generated CRDs, as an API server does when it
// stores them.
package schemacheck

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// Limits of the API server on what rules may cost.
const (
	celCallLimit = 1_000_000
	celBudget    = 10_000_000
)

// MaxFieldBytes is what a status may add to an object in etcd, which takes 1.5 MiB with spec
// and metadata.
const MaxFieldBytes = 256 << 10

// fieldSchema is the schema of one field of a kind's root.
type fieldSchema struct {
	structural *structuralschema.Structural
	rules      *cel.Validator
	values     validation.SchemaValidator
}

// RequireStorable requires that an API server stores the status of an object of a kind.
func RequireStorable(t require.TestingT, kind string, status any) {
	RequireFieldStorable(t, kind, "status", status)
}

// RequireFieldStorable requires that an API server stores a field of the root of a kind.
func RequireFieldStorable(t require.TestingT, kind, name string, value any) {
	errs, size, err := check(kind, name, value)
	require.NoError(t, err)
	require.Empty(t, errs, "%s of %s", name, kind)
	require.LessOrEqual(t, size, MaxFieldBytes, "%s of %s", name, kind)
}

func check(kind, name string, value any) (errs field.ErrorList, size int, err error) {
	s, err := load(kind, name)
	if err != nil {
		return nil, 0, err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, 0, err
	}
	// As stored: a pointer to a zero time is null, which no field allows.
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(value)
	if err != nil {
		return nil, 0, err
	}
	path := field.NewPath(name)
	errs = validation.ValidateCustomResource(path, stored, s.values)
	errs = append(errs, listtype.ValidateListSetsAndMaps(path, s.structural, stored)...)
	// Rules assume a valid structure, as on the API server.
	if len(errs) == 0 && s.rules != nil {
		errs, _ = s.rules.Validate(context.Background(), path, s.structural, stored, nil, celBudget)
	}
	return errs, len(text), nil
}

var (
	mu     sync.Mutex
	loaded = map[[2]string]*fieldSchema{}
)

// load returns the schema of a field. It reads the CRD once per test binary.
func load(kind, name string) (*fieldSchema, error) {
	mu.Lock()
	defer mu.Unlock()
	if s := loaded[[2]string{kind, name}]; s != nil {
		return s, nil
	}
	root, err := FindRoot()
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(root, "charts/*/files/*/*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if crd.Spec.Names.Kind != kind {
			continue
		}
		found, ok := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[name]
		if !ok {
			return nil, fmt.Errorf("%s has no field %s", path, name)
		}
		s, err := newFieldSchema(&found)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		loaded[[2]string{kind, name}] = s
		return s, nil
	}
	return nil, fmt.Errorf("there is no CRD of kind %s", kind)
}

func newFieldSchema(v1Props *apiextensionsv1.JSONSchemaProps) (s *fieldSchema, err error) {
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1Props, &props, nil); err != nil {
		return nil, err
	}
	s = &fieldSchema{}
	if s.structural, err = structuralschema.NewStructural(&props); err != nil {
		return nil, err
	}
	if s.values, _, err = validation.NewSchemaValidator(&props); err != nil {
		return nil, err
	}
	s.rules = cel.NewValidator(s.structural, false, celCallLimit)
	return s, nil
}

// FindRoot finds the module above the working directory, which is the package under test.
func FindRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// Phases returns the values that status.phase of a kind may have; none where it has no phase.
func Phases(t require.TestingT, kind string) (phases []string) {
	status, err := load(kind, "status")
	require.NoError(t, err)
	phase, exists := status.structural.Properties["phase"]
	if !exists {
		return nil
	}
	require.NotNil(t, phase.ValueValidation, "%s has an open set of phases", kind)
	require.NotEmpty(t, phase.ValueValidation.Enum, "%s has an open set of phases", kind)
	for _, value := range phase.ValueValidation.Enum {
		phases = append(phases, value.Object.(string))
	}
	return phases
}
