package builtin

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// podsArePreserved is upstream's warning: by default, deleting a job of batch/v1 orphans its pods. kubectl always
// sends a policy.
const podsArePreserved = "child pods are preserved by default when jobs are deleted; set " +
	"propagationPolicy=Background to remove them or " +
	"set propagationPolicy=Orphan to suppress this warning"

// batch returns the rows of the group batch.
func batch() []*kind.Resource {
	v1 := gv("batch", "v1")
	jobs := row[batchv1.Job, batchv1.JobList](v1, "jobs", "job", job.Strategy, jobFields)
	jobs.Categories, jobs.Status, jobs.DeleteWarning = []string{"all"}, job.StatusStrategy, podsArePreserved
	crons := row[batchv1.CronJob, batchv1.CronJobList](v1, "cronjobs", "cronjob", cronjob.Strategy, metaFields)
	crons.ShortNames, crons.Categories, crons.Status = []string{"cj"}, []string{"all"}, cronjob.StatusStrategy
	return []*kind.Resource{jobs, crons}
}
