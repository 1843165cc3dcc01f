package apidiscovery

import (
	"context"
	"regexp"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// WithStrictCreates returns a client whose creates the API server refuses where the CRD of
// another project lacks a field that is set: by default it drops the field in silence.
// Apply requests are always strict. The agent's own kinds are exempt: an older CRD ignores
// fields of a newer agent. Errors do not quote the headers of an image.
func WithStrictCreates(c client.Client) client.Client { return strictCreates{c} }

type strictCreates struct{ client.Client }

// Create implements client.Writer.
func (c strictCreates) Create(ctx context.Context, obj client.Object, options ...client.CreateOption) error {
	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	if gvk.Group != v1alpha1.GroupVersion.Group {
		options = append(options, client.FieldValidation(metav1.FieldValidationStrict))
	}
	return redactHeaders(obj, c.Client.Create(ctx, obj, options...))
}

// redactHeaders redacts the headers of an image in the error of its creation, which becomes
// part of statuses, events and logs.
func redactHeaders(obj client.Object, err error) error {
	if err == nil {
		return nil
	}
	switch o := obj.(type) {
	case *v1alpha1.VMDiskImage:
		return o.Spec.RedactError(err)
	case *cdiv1.DataVolume:
		if source := o.Spec.Source; source != nil && source.HTTP != nil {
			return (&v1alpha1.VMDiskImageSpec{ExtraHeaders: source.HTTP.ExtraHeaders}).RedactError(err)
		}
	}
	return err
}

var unknownField = regexp.MustCompile(`unknown field "([^"]{1,253})"`)

// maxUnknownFields bounds what UnknownFields returns.
const maxUnknownFields = 5

// UnknownFields returns the paths of the fields for which the API server refused a strict
// request, because the CRD lacks them; none for any other error.
func UnknownFields(err error) (paths []string) {
	if !apierrors.IsBadRequest(err) {
		return nil
	}
	for _, match := range unknownField.FindAllStringSubmatch(err.Error(), maxUnknownFields) {
		paths = append(paths, match[1])
	}
	return paths
}
