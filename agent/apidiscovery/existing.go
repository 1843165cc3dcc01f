package apidiscovery

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GetExisting reads an object; nil if it does not exist. A key that no object can have is not
// read: others write names, and the client for metadata puts them into the path of the request as
// they are, so that "../.." would reach any other resource.
func GetExisting[T client.Object](ctx context.Context, reader client.Reader, key types.NamespacedName, obj T) (T, error) {
	var none T
	if len(validation.IsDNS1123Subdomain(key.Name)) > 0 || key.Namespace != "" && len(validation.IsDNS1123Label(key.Namespace)) > 0 {
		return none, nil
	}
	switch err := reader.Get(ctx, key, obj); {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading %T %s: %w", obj, key, err)
	}
	return obj, nil
}
