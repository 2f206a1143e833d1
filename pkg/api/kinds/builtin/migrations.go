package builtin

import (
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// migrationRows returns the row of storage version migrations (KEP-4192).
func migrationRows() []*kind.Resource {
	v1 := gv("storagemigration.k8s.io", "v1")
	migrations := row[storagemigrationv1.StorageVersionMigration, storagemigrationv1.StorageVersionMigrationList](v1,
		"storageversionmigrations", "storageversionmigration",
		storagemigration.Strategy, metaFields)
	migrations.Status = storagemigration.StatusStrategy
	// Upstream 1.37 stores v1beta1, which it does not serve by default.
	migrations.Also = []*kind.Resource{
		row[storagemigrationv1beta1.StorageVersionMigration, storagemigrationv1beta1.StorageVersionMigrationList](gv(v1.Group,
			"v1beta1"),
			"storageversionmigrations", "storageversionmigration", storagemigration.Strategy, metaFields),
	}
	return []*kind.Resource{migrations}
}
