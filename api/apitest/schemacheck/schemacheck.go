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

// MaxStatusBytes is what a status may add to an object in etcd, which takes 1.5 MiB with spec
// and metadata.
const MaxStatusBytes = 256 << 10

type statusSchema struct {
	structural *structuralschema.Structural
	rules      *cel.Validator
	values     validation.SchemaValidator
}

// RequireStorable requires that an API server stores the status of an object of a kind.
func RequireStorable(t require.TestingT, kind string, status any) {
	errs, size, err := check(kind, status)
	require.NoError(t, err)
	require.Empty(t, errs, "status of %s", kind)
	require.LessOrEqual(t, size, MaxStatusBytes, "status of %s", kind)
}

func check(kind string, status any) (errs field.ErrorList, size int, err error) {
	schemas, err := load()
	if err != nil {
		return nil, 0, err
	}
	s, found := schemas[kind]
	if !found {
		return nil, 0, fmt.Errorf("no CRD of kind %s has a status", kind)
	}
	text, err := json.Marshal(status)
	if err != nil {
		return nil, 0, err
	}
	// As stored: a pointer to a zero time is null, which no field allows.
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return nil, 0, err
	}
	path := field.NewPath("status")
	errs = validation.ValidateCustomResource(path, stored, s.values)
	errs = append(errs, listtype.ValidateListSetsAndMaps(path, s.structural, stored)...)
	// Rules assume a valid structure, as on the API server.
	if len(errs) == 0 && s.rules != nil {
		errs, _ = s.rules.Validate(context.Background(), path, s.structural, stored, nil, celBudget)
	}
	return errs, len(text), nil
}

// load reads the status schemas of all kinds, once per test binary.
var load = sync.OnceValues(func() (map[string]statusSchema, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	found := map[string]statusSchema{}
	for _, pattern := range []string{"charts/*/files/crds/*.yaml", "charts/*/files/mailbox/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			kind, s, err := loadStatus(path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if s != nil {
				found[kind] = *s
			}
		}
	}
	return found, nil
})

func loadStatus(path string) (kind string, _ *statusSchema, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return "", nil, err
	}
	version := crd.Spec.Versions[0]
	status, found := version.Schema.OpenAPIV3Schema.Properties["status"]
	if !found {
		return "", nil, nil
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&status, &props, nil); err != nil {
		return "", nil, err
	}
	s := &statusSchema{}
	if s.structural, err = structuralschema.NewStructural(&props); err != nil {
		return "", nil, err
	}
	if s.values, _, err = validation.NewSchemaValidator(&props); err != nil {
		return "", nil, err
	}
	s.rules = cel.NewValidator(s.structural, false, celCallLimit)
	return crd.Spec.Names.Kind, s, nil
}

// findRoot finds the module above the working directory, which is the package under test.
func findRoot() (string, error) {
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
