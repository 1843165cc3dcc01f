package apidiscovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// schemaInterval is how often the API server is asked whether its schemas have changed.
	schemaInterval = 30 * time.Second
	// schemaRequestTimeout bounds one request.
	schemaRequestTimeout = 10 * time.Second
)

// ImageFields tracks which fields of images this cluster takes; see
// mailbox.ServedImageFields. It is a Runnable of a controller-runtime manager.
type ImageFields struct {
	client   discovery.DiscoveryInterface
	onChange func()

	mu         sync.Mutex
	fields     []string
	planFields []string

	schemas string // the version of fields; belongs to Refresh
}

// NewImageFields returns ImageFields that call onChange when they change. It must not block.
func NewImageFields(cfg *rest.Config, onChange func()) (*ImageFields, error) {
	bounded := rest.CopyConfig(cfg)
	bounded.Timeout = schemaRequestTimeout
	client, err := discovery.NewDiscoveryClientForConfig(bounded)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server's schemas: %w", err)
	}
	return &ImageFields{client: client, onChange: onChange}, nil
}

// Current returns the fields; none before the first Refresh has succeeded.
func (f *ImageFields) Current() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fields
}

// Plan returns the fields of mailbox.ServedPlanFields; none before the first Refresh has
// succeeded.
func (f *ImageFields) Plan() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.planFields
}

// Refresh reads the fields if the schemas have changed. After a failure the former ones stay.
// Where the API server shows its schemas to nobody, the agent's own fields count: its
// chart brings the CustomResourceDefinitions.
func (f *ImageFields) Refresh(ctx context.Context) {
	document, version, err := mailbox.FetchSchemas(f.client, f.schemas)
	var fields, planFields []string
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		version, fields, planFields = "", v1alpha1.ImageFields(), []string{v1alpha1.PlanFieldRetry}
	case err == nil && document == nil:
		return
	case err == nil:
		fields, err = mailbox.ServedImageFields(document)
		planFields, _ = mailbox.ServedPlanFields(document) // fails only as the line before
	}
	if fields == nil {
		log.FromContext(ctx).Error(err, "Failed to read which fields of images this cluster takes; keeping the former ones")
		return
	}
	f.schemas = version
	f.mu.Lock()
	changed := !slices.Equal(f.fields, fields) || !slices.Equal(f.planFields, planFields)
	f.fields, f.planFields = fields, planFields
	f.mu.Unlock()
	if changed {
		f.onChange()
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a new leader reports at once.
func (f *ImageFields) NeedLeaderElection() bool { return false }

// Start refreshes until ctx ends.
func (f *ImageFields) Start(ctx context.Context) error {
	_ = wait.PollUntilContextCancel(ctx, schemaInterval, false, func(ctx context.Context) (bool, error) {
		f.Refresh(ctx)
		return false, nil
	})
	return nil
}
