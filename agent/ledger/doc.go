// Package ledger decides which images import next: Queue orders the waiting
// images, Decide computes the next state of the SyncLedger.
//
// Decide is pure. The model in model_test.go explores it together with
// everything that can happen between its reads and its write.
//
// The slot protocol, which every leader follows:
//
//  1. Read the ledger, then the images at the head of the queue, live. Write the
//     slot with the resourceVersion of that ledger. An outcome is stored on the
//     image before its slot is freed: an attempt that ended before the ledger was
//     read shows on the image, one that ended later makes the write conflict.
//  2. Create the DataVolume that the slot names. The admission policy refuses a
//     DataVolume that no slot names. A missing DataVolume is created again (roll
//     forward) unless the image says that the attempt was started.
//  3. Store the outcome on the image, by attempt number.
//  4. Mark the slot as ended. From then on the admission policy refuses its
//     DataVolume, so a delayed create request cannot bring it back. After a
//     failure, delete everything that belongs to the attempt. Free the slot once
//     the import is complete or nothing is left. An image that is gone, or is being
//     deleted without the agent's finalizer, gets no outcome: its attempt has failed.
package ledger
