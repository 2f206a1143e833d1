package storagemigration

import (
	"fmt"
	"slices"
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Turn is what a migration does next.
type Turn string

const (
	Nothing Turn = "nothing" // it has ended
	Wait    Turn = "wait"    // for another migration of the resource
	Start   Turn = "start"
	Migrate Turn = "migrate" // it is running
	Finish  Turn = "finish"  // it has ended, but is still marked as running
)

// Upstream's reasons of conditions.
const (
	running   = "MigrationRunning"
	completed = "MigrationCompleted"
	succeeded = "StorageVersionMigrationSucceeded"
	failed    = "StorageVersionMigrationFailed"
)

func is(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
}

func ended(m *storagemigrationv1.StorageVersionMigration) bool {
	return is(m, storagemigrationv1.MigrationSucceeded) || is(m, storagemigrationv1.MigrationFailed)
}

// Plan returns what m does next. all are all migrations. At most one migration per resource runs at a time, oldest
// first.
func Plan(m *storagemigrationv1.StorageVersionMigration, all []storagemigrationv1.StorageVersionMigration) Turn {
	runs := is(m, storagemigrationv1.MigrationRunning)
	switch {
	case ended(m) && runs:
		return Finish
	case ended(m):
		return Nothing
	case runs:
		return Migrate
	}
	for i := range all {
		o := &all[i]
		if o.UID == m.UID || o.Spec.Resource != m.Spec.Resource {
			continue
		}
		if is(o, storagemigrationv1.MigrationRunning) || !ended(o) && compare(o, m) < 0 {
			return Wait
		}
	}
	return Start
}

func compare(a, b *storagemigrationv1.StorageVersionMigration) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// set sets a condition. It reports whether the status changed.
func set(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType,
	status metav1.ConditionStatus, reason, message string) bool {
	return meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type:               string(t),
		Status:             status,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: m.Generation,
	})
}

func progress(left, total int, transient error) string {
	message := "The migration is running"
	switch {
	case left > 0:
		message += fmt.Sprintf(", %d/%d objects not yet migrated", left, total)
	case total > 0:
		message += fmt.Sprintf(", %d objects verified migrated", total)
	}
	if transient != nil {
		message += "; transient error: " + transient.Error()
	}
	return message
}

func begun(crd *apiextensionsv1.CustomResourceDefinition,
	migration string) apiextensionsv1.CustomResourceDefinitionStatus {
	return migrating(crd, apiextensionsv1.ConditionTrue, running, fmt.Sprintf("Migration %s is running", migration))
}

// done returns the status of a definition after a migration. Old stored versions are removed only if the migration
// succeeded and the definition has not changed since it began.
//
// Decision: upstream removes them after a failed migration, too. Objects could then not be read once their version
// is removed.
func done(crd *apiextensionsv1.CustomResourceDefinition, success bool) apiextensionsv1.CustomResourceDefinitionStatus {
	if !success {
		return migrating(crd, apiextensionsv1.ConditionFalse, "MigrationFailed", "The migration has failed")
	}
	unchanged := slices.ContainsFunc(crd.Status.Conditions,
		func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.StorageMigrating && c.ObservedGeneration == crd.Generation
		})
	if !unchanged {
		return migrating(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded",
			"The migration has succeeded but the stored versions have not been updated due to a generation mismatch")
	}
	status := migrating(crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded",
		"The migration has succeeded and the stored versions have been updated")
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			status.StoredVersions = []string{v.Name}
		}
	}
	return status
}

func migrating(crd *apiextensionsv1.CustomResourceDefinition, value apiextensionsv1.ConditionStatus,
	reason, message string) apiextensionsv1.CustomResourceDefinitionStatus {
	status := crd.Status.DeepCopy()
	status.Conditions = slices.DeleteFunc(status.Conditions,
		func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.StorageMigrating
		})
	status.Conditions = append(status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type:   apiextensionsv1.StorageMigrating,
		Status: value, Reason: reason, Message: message, LastTransitionTime: metav1.Now(), ObservedGeneration: crd.Generation,
	})
	return *status
}
