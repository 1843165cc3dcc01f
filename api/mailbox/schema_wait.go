package mailbox

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// schemaWaitTimeout is how long to wait for an API server to publish definitions
	// that were just applied.
	schemaWaitTimeout = 10 * time.Second
	// schemaPollInterval is the interval between two requests.
	schemaPollInterval = time.Second
	// schemaRequestTimeout bounds one request.
	schemaRequestTimeout = 10 * time.Second
	// maxNamedFields is how many unknown fields the error lists.
	maxNamedFields = 8
)

// WaitForSchemas returns an error that lists unknown fields if the API server keeps
// serving older definitions of these types, because it would drop those fields
// silently. It does not wait for an API server whose schemas cannot be read.
func WaitForSchemas(ctx context.Context, cfg *rest.Config, types ...any) error {
	bounded := rest.CopyConfig(cfg)
	bounded.Timeout = schemaRequestTimeout
	client, err := discovery.NewDiscoveryClientForConfig(bounded)
	if err != nil {
		return fmt.Errorf("making a client for the API server's schemas: %w", err)
	}
	var unknown []string
	err = wait.PollUntilContextTimeout(ctx, schemaPollInterval, schemaWaitTimeout, true, func(context.Context) (bool, error) {
		if unknown, err = fetchUnknownFields(client, types); err != nil {
			log.FromContext(ctx).Error(err, "Failed to compare CustomResourceDefinitions with this program; starting without")
			return true, nil
		}
		return len(unknown) == 0, nil
	})
	if err == nil || !wait.Interrupted(err) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the CustomResourceDefinitions of %s are older than this program and would drop fields that it writes: %s. "+
		"Apply those of its release, as `helm upgrade` does with crds.enabled=true", v1alpha1.GroupVersion, v1alpha1.JoinFirst(unknown, maxNamedFields, len(unknown)))
}

func fetchUnknownFields(client discovery.DiscoveryInterface, types []any) ([]string, error) {
	document, _, err := FetchSchemas(client, "")
	if err != nil || document == nil {
		return nil, err
	}
	return UnknownFields(document, types...)
}

// FetchSchemas returns the OpenAPI document of the product's kinds, and its version; no
// document if the API server has none, or if its version is the known one.
func FetchSchemas(client discovery.DiscoveryInterface, known string) (document []byte, version string, err error) {
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return nil, "", fmt.Errorf("listing the API server's schemas: %w", err)
	}
	group, ok := paths["apis/"+v1alpha1.GroupVersion.String()]
	if !ok {
		return nil, "", nil
	}
	if version = group.ServerRelativeURL(); version == known {
		return nil, version, nil
	}
	if document, err = group.Schema("application/json"); err != nil {
		return nil, "", fmt.Errorf("reading the schemas of %s: %w", v1alpha1.GroupVersion, err)
	}
	return document, version, nil
}
