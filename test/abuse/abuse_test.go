package abuse

import (
	"testing"
)

// TestAbuse runs all attacks on one cluster, in sequence.
func TestAbuse(t *testing.T) {
	c := newCluster(t)
	for _, a := range []struct {
		name   string
		attack func(*testing.T, *cluster)
	}{
		{"json patch copies", jsonPatchCopies},
		{"yaml aliases", yamlAliases},
		{"deep nesting", deepNesting},
		{"managed fields in descending order", descendingFields},
		{"long selectors", longSelectors},
		{"clients that never read", neverRead},
		{"bodies that never end", endlessBodies},
		{"idle connections", idleConnections},
		{"a storm of lists", stormOfLists},
		{"watches as writes", watchesAsWrites},
		{"impersonated extras", impersonatedExtras},
		{"proxies to the machine", proxiesToTheMachine},
		{"metrics made by clients", metricsMadeByClients},
		{"names that name themselves", dnsLoop},
		{"taking the address of DNS", externalIPs},
		{"etc hosts of a terabyte", hostsOfATerabyte},
		{"a flood of logs", logFlood},
		{"a line without an end", endlessLine},
		{"a fork bomb", forkBomb},
		{"writing to process 1", writeToProcess1},
		{"root of its own", rootOfItsOwn},
		{"fields that are not honoured", notHonoured},
		{"a node that marks pods", nodeMarksPods},
		{"a node that takes a network", nodeTakesNetwork},
		{"a node that takes an address", nodeTakesAddress},
		{"a registry that lies", lyingRegistry},
		{"credentials for another registry", foreignRegistry},
	} {
		t.Run(a.name, func(t *testing.T) {
			c.under(t, func(t *testing.T) { a.attack(t, c) })
		})
	}
}
