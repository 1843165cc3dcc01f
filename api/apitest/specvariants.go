package apitest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SpecVariants returns, by the name of each field of a VMDiskImageSpec, a spec that differs from
// base in that field alone. Fields are found by reflection: none is left out.
func SpecVariants(base v1alpha1.VMDiskImageSpec) map[string]v1alpha1.VMDiskImageSpec {
	variants := map[string]v1alpha1.VMDiskImageSpec{}
	for i := range reflect.TypeFor[v1alpha1.VMDiskImageSpec]().NumField() {
		spec := *base.DeepCopy()
		field := reflect.ValueOf(&spec).Elem().Field(i)
		switch value := field.Interface().(type) {
		case resource.Quantity:
			value.Add(resource.MustParse("1Gi"))
			field.Set(reflect.ValueOf(value))
		case *metav1.Duration:
			other := metav1.Duration{Duration: time.Hour}
			if value != nil {
				other.Duration += value.Duration
			}
			field.Set(reflect.ValueOf(&other))
		case []string:
			field.Set(reflect.ValueOf(append(value, "another")))
		case *v1alpha1.DataSourceReference:
			field.Set(reflect.ValueOf(&v1alpha1.DataSourceReference{Name: "another"}))
		case *v1alpha1.Publish:
			field.Set(reflect.ValueOf(&v1alpha1.Publish{DataSource: true, Name: "another"}))
		case *v1alpha1.MachineDefaults:
			field.Set(reflect.ValueOf(&v1alpha1.MachineDefaults{Instancetype: "another"}))
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString(field.String() + "x")
			case reflect.Int32:
				field.SetInt(field.Int() + 1)
			default:
				panic(fmt.Sprintf("a VMDiskImageSpec has a field of type %T: add it here", value))
			}
		}
		name, _, _ := strings.Cut(reflect.TypeFor[v1alpha1.VMDiskImageSpec]().Field(i).Tag.Get("json"), ",")
		variants[name] = spec
	}
	return variants
}
