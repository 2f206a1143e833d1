package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Fields returns the fields for field selectors other than name and namespace.
func Fields(t *Task) fields.Set { return fields.Set{"status.phase": string(t.Status.Phase)} }

// Columns returns the columns of kubectl get tasks. Columns with priority 1 are shown only with -o wide.
func Columns() []metav1.TableColumnDefinition {
	name := metav1.ObjectMeta{}.SwaggerDoc()["name"]
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: name},
		{Name: "Phase", Type: "string", Description: "Pending, Scheduled, Running, Completed or Failed"},
		{Name: "Node", Type: "string", Description: "The node it was scheduled to"},
		{Name: "Exit", Type: "string", Description: "The container's exit code"},
		{Name: "Attempts", Type: "integer", Description: "The attempts so far, in an array of all indexes"},
		{Name: "Indexes", Type: "string", Description: "The completed and all indexes of an array"},
		{Name: "Age", Type: "string", Description: "Time since its creation"},
		{Name: "Image", Type: "string", Priority: 1, Description: "The container image"},
		{Name: "Reason", Type: "string", Priority: 1, Description: "Why it failed, in one word"},
		{Name: "Error", Type: "string", Priority: 1, Description: "Why it failed"},
	}
}

// Cells returns a task's values for Columns.
func Cells(t *Task, now time.Time) []any {
	exit := ""
	if t.Status.ExitCode != nil {
		exit = fmt.Sprint(*t.Status.ExitCode)
	}
	phase := string(t.Status.Phase)
	if t.DeletionTimestamp != nil && !t.Status.Phase.Ended() {
		phase = "Terminating"
	}
	return []any{
		t.Name, phase, t.Status.Node, exit, Attempts(t), Indexes(t), common.Age(t.CreationTimestamp.Time, now), t.Spec.Image,
		t.Status.Reason, t.Status.Error,
	}
}

// Attempts returns the number of attempts begun.
func Attempts(t *Task) int64 {
	n := int64(t.Status.EndedAttempts)
	for i := range t.Status.Attempts {
		if a := &t.Status.Attempts[i]; !a.Phase.Ended() && a.PodUID != "" {
			n++
		}
	}
	return n
}

// Indexes returns "completed/all" for an array, otherwise "".
func Indexes(t *Task) string {
	if t.Spec.Array == nil {
		return ""
	}
	done := int32(0)
	if t.Status.Array != nil {
		done = t.Status.Array.Completed
	}
	return fmt.Sprintf("%d/%d", done, t.Size())
}
