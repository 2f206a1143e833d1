package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/api/equality"
)

// KeyPrefix begins the names of tasks with an idempotency key.
const KeyPrefix = "key-"

// NameForKey returns the name of the task with an idempotency key: that only one task of a namespace has a name makes
// keys unique, without a lock and without another object.
func NameForKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return KeyPrefix + hex.EncodeToString(sum[:16])
}

// SameRequest reports whether two tasks ask for the same, whatever was changed after their creation: a second request
// with the idempotency key of the first is answered with the first only then.
func SameRequest(a, b *Task) bool {
	return equality.Semantic.DeepEqual(fixed(a), fixed(b))
}

// fixed returns the spec without what may change while the task exists.
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
