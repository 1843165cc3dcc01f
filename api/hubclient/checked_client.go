package hubclient

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errAnotherObject means that a server answers with another object than it was asked for.
var errAnotherObject = errors.New("an answer is about another object than the request")

// checkedClient refuses answers that are about another object than the request. The
// client leaves an object empty when the answer has another kind.
type checkedClient struct{ client.Client }

// Get implements client.Reader.
func (c checkedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, o, options...); err != nil {
		return err
	}
	return checkIdentity(o, key)
}

// Create implements client.Writer.
func (c checkedClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	key := client.ObjectKeyFromObject(o)
	if err := c.Client.Create(ctx, o, options...); err != nil || key.Name == "" {
		return err
	}
	return checkIdentity(o, key)
}

// Update implements client.Writer.
func (c checkedClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	key := client.ObjectKeyFromObject(o)
	if err := c.Client.Update(ctx, o, options...); err != nil {
		return err
	}
	return checkIdentity(o, key)
}

func checkIdentity(o client.Object, key client.ObjectKey) error {
	if client.ObjectKeyFromObject(o) != key || o.GetResourceVersion() == "" {
		return fmt.Errorf("reading the answer about %T %s: %w", o, key, errAnotherObject)
	}
	return nil
}
