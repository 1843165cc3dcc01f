//go:build linux

package process

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// StartAll starts one thing for each of options, side by side. If one fails to start, the others
// are stopped.
func StartAll[O any, T interface{ Stop() error }](ctx context.Context, start func(context.Context, O) (T, error), options []O) ([]T, error) {
	all, started := make([]T, len(options)), make([]bool, len(options))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, o := range options {
		group.Go(func() (err error) {
			all[i], err = start(groupCtx, o)
			started[i] = err == nil
			return err
		})
	}
	err := group.Wait()
	if err == nil {
		return all, nil
	}
	for i, one := range all {
		if started[i] {
			err = errors.Join(err, one.Stop())
		}
	}
	return nil, err
}
