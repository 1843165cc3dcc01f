package vm

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// sharedReads reads images from the API server, each for several machines at once: those of one
// image acquire it together. Invariant: a read begins after everybody who gets its answer has asked.
// So a machine that asks after its pin was stored sees the image as it was later.
type sharedReads struct {
	mu sync.Mutex
	// reads has those that have not ended. Of an image, one may have begun and one waits for it.
	reads map[types.NamespacedName]*imageReads
}

type imageReads struct{ begun, next *imageRead }

type imageRead struct {
	done chan struct{}
	img  *v1alpha1.VMDiskImage
	err  error
}

// get returns an image that others may hold too; nil if it does not exist.
func (s *sharedReads) get(ctx context.Context, reader client.Reader, key types.NamespacedName) (*v1alpha1.VMDiskImage, error) {
	s.mu.Lock()
	if s.reads == nil {
		s.reads = map[types.NamespacedName]*imageReads{}
	}
	reads := s.reads[key]
	if reads == nil {
		reads = &imageReads{}
		s.reads[key] = reads
	}
	if reads.next == nil {
		reads.next = &imageRead{done: make(chan struct{})}
	}
	read := reads.next
	if reads.begun == nil {
		s.beginNext(ctx, reader, key, reads)
	}
	s.mu.Unlock()
	select {
	case <-read.done:
		return read.img, read.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// beginNext begins the next read. The client bounds how long it takes. s.mu is held.
func (s *sharedReads) beginNext(ctx context.Context, reader client.Reader, key types.NamespacedName, reads *imageReads) {
	read := reads.next
	reads.begun, reads.next = read, nil
	ctx = context.WithoutCancel(ctx) // others wait for it, too
	go func() {
		read.img, read.err = getOptional(ctx, reader, key, &v1alpha1.VMDiskImage{})
		close(read.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		if reads.begun = nil; reads.next != nil {
			s.beginNext(ctx, reader, key, reads)
		} else {
			delete(s.reads, key)
		}
	}()
}
