package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/api/equality"
)

// KeyPrefix is the prefix of the names of tasks with an idempotency key.
const KeyPrefix = "key-"

// NameForKey returns the name of the task with an idempotency key. Names are unique in a namespace, so keys are
// too, without a lock or another object.
func NameForKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return KeyPrefix + hex.EncodeToString(sum[:16])
}

// SameRequest reports whether two tasks were created by equal requests, ignoring fields that may change later. If
// they are equal, a second request with the same idempotency key gets the first task as its response.
func SameRequest(a, b *Task) bool {
	return equality.Semantic.DeepEqual(fixed(a), fixed(b))
}

// fixed returns the spec without the fields that can change after creation.
func fixed(t *Task) *TaskSpec {
	c := t.DeepCopy()
	Default(c)
	s := &c.Spec
	s.Suspend, s.Cancel, s.TTLSecondsAfterFinished = false, false, nil
	s.Retries, s.BackoffSeconds, s.RunTimeoutSeconds, s.ScheduleTimeoutSeconds, s.StartTimeoutSeconds = 0, nil, nil, nil,
		nil
	if s.Array != nil {
		s.Array.Parallelism = nil
	}
	return s
}
