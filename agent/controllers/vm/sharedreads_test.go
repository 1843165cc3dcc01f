package vm

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// countingReader answers each read with its number, after a value comes from release.
type countingReader struct {
	client.Reader
	begun   int
	release chan error
}

func (r *countingReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	r.begun++
	o.SetGeneration(int64(r.begun))
	return <-r.release
}

// A read that has begun is not shared: the image may have changed before who asks now stored its pin.
func TestSharedReadBeginsAfterAllHaveAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, reads := &countingReader{release: make(chan error)}, &sharedReads{}
		key := types.NamespacedName{Namespace: "ns", Name: "golden"}
		var got [6]int64
		ask := func(i int) {
			go func() {
				img, err := reads.get(t.Context(), reader, key)
				assert.NoError(t, err)
				got[i] = img.Generation
			}()
			synctest.Wait()
		}
		ask(0)
		ask(1)
		ask(2)
		assert.Equal(t, 1, reader.begun)
		reader.release <- nil
		synctest.Wait()
		assert.Equal(t, [6]int64{1}, got)
		assert.Equal(t, 2, reader.begun)
		ask(3)
		reader.release <- nil
		synctest.Wait()
		assert.Equal(t, [6]int64{1, 2, 2}, got)
		reader.release <- nil
		synctest.Wait()
		assert.Equal(t, [6]int64{1, 2, 2, 3}, got)
		assert.Empty(t, reads.reads)
		ask(4)
		reader.release <- nil
		synctest.Wait()
		assert.Equal(t, int64(4), got[4])
	})
}

// Who gives up takes the answer from nobody, and an error is everybody's who shares the read.
func TestSharedReadOutlivesWhoAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, reads := &countingReader{release: make(chan error)}, &sharedReads{}
		key := types.NamespacedName{Namespace: "ns", Name: "golden"}
		ctx, cancel := context.WithCancel(t.Context())
		var first, second error
		var img *v1alpha1.VMDiskImage
		go func() { _, first = reads.get(ctx, reader, key) }()
		synctest.Wait()
		go func() { img, second = reads.get(t.Context(), reader, key) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.ErrorIs(t, first, context.Canceled)
		reader.release <- errors.New("gone wrong")
		synctest.Wait()
		require.NoError(t, second)
		reader.release <- nil
		synctest.Wait()
		require.NoError(t, second)
		assert.Equal(t, int64(2), img.Generation)
	})
}
