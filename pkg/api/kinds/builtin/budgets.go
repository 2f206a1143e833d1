package builtin

import (
	policyv1 "k8s.io/api/policy/v1"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"

	"github.com/coracle-dev/coracle/pkg/kind"
)

func budgetRows() []*kind.Resource {
	budgets := row[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](gv("policy", "v1"),
		"poddisruptionbudgets", "poddisruptionbudget",
		poddisruptionbudget.Strategy, metaFields)
	budgets.ShortNames, budgets.Status = []string{"pdb"}, poddisruptionbudget.StatusStrategy
	return []*kind.Resource{budgets}
}
