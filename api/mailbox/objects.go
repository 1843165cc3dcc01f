package mailbox

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Locations of an object for error messages.
const (
	onHub    = "on the hub"
	inMember = "in the member"
)

// readObject reads an object. It may be shared with a cache and must not be changed.
func readObject[T client.Object](ctx context.Context, from client.Reader, k kindInfo[T], side Side, where, name string) (object T, found bool, err error) {
	object = k.newObject()
	err = from.Get(ctx, client.ObjectKey{Namespace: side.Namespace, Name: name}, object, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return object, false, nil
	case err != nil:
		return object, false, failureOf(where, err, "reading %s %s/%s %s%s", k.name, side.Namespace, name, where, missingKindHint(err, where))
	}
	return object, true, nil
}

// writeCopy gives the copy the content of the source, unless somebody else wrote the
// copy since it was read as target.
func writeCopy[T client.Object](ctx context.Context, k kindInfo[T], side Side, where string, source, target T, exists bool) (T, error) {
	name := source.GetName()
	if !exists {
		created := k.newObject()
		created.SetNamespace(side.Namespace)
		created.SetName(name)
		k.copyContent(created, source)
		if err := side.Live.Create(ctx, created); err != nil {
			if apierrors.IsAlreadyExists(err) {
				err = asConflict(k.resource, name, err)
			}
			return created, failureOf(where, err, "creating %s %s/%s %s%s", k.name, side.Namespace, name, where, missingKindHint(err, where))
		}
		return created, nil
	}
	updated := target.DeepCopyObject().(T)
	k.copyContent(updated, source)
	ownership.Untrack(updated)
	if err := side.Live.Update(ctx, updated); err != nil {
		if apierrors.IsNotFound(err) {
			err = asConflict(k.resource, name, err)
		}
		return updated, failureOf(where, err, "updating %s %s/%s %s", k.name, side.Namespace, name, where)
	}
	return updated, nil
}

// asConflict turns an error into a conflict: somebody else created or deleted the copy
// at the same time.
func asConflict(resource, name string, err error) error {
	return apierrors.NewConflict(apischema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: resource}, name, err)
}

func missingKindHint(err error, where string) string {
	chart := "ot-agent"
	if where == onHub {
		chart = "ot-hub"
	}
	switch {
	case meta.IsNoMatchError(err):
		return " (the kind is not served there: install the CustomResourceDefinitions of chart " + chart + ")"
	case apierrors.IsNotFound(err) && where == inMember:
		return " (the namespace does not exist there, or the kind is not served: install chart ot-agent, or correct agentNamespace of the MemberCluster)"
	case apierrors.IsNotFound(err):
		return " (the namespace does not exist there, or the kind is not served)"
	}
	return ""
}

// MemberError is a failure of a request to the member.
type MemberError struct {
	// Doing is what failed.
	Doing string
	err   error
}

func (e *MemberError) Error() string { return e.Doing + ": " + e.err.Error() }

func (e *MemberError) Unwrap() error { return e.err }

// failureOf says what failed, and on which side.
func failureOf(where string, err error, format string, args ...any) error {
	doing := fmt.Sprintf(format, args...)
	if where == inMember {
		return &MemberError{Doing: doing, err: err}
	}
	return fmt.Errorf("%s: %w", doing, err)
}
