package fairness

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
)

// levelOf returns a priority level that neither lends nor borrows seats.
func levelOf(name string, shares int32,
	queuing *flowcontrol.QueuingConfiguration) *flowcontrol.PriorityLevelConfiguration {
	response := flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeReject}
	if queuing != nil {
		response = flowcontrol.LimitResponse{Type: flowcontrol.LimitResponseTypeQueue, Queuing: queuing}
	}
	return &flowcontrol.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-level"},
		Spec: flowcontrol.PriorityLevelConfigurationSpec{
			Type: flowcontrol.PriorityLevelEnablementLimited, Limited: &flowcontrol.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &shares, BorrowingLimitPercent: new(int32(0)), LimitResponse: response},
		}}
}

// schemaOf returns a flow schema that sends all requests of a user to a level.
func schemaOf(name, user, level string, precedence int32) *flowcontrol.FlowSchema {
	return &flowcontrol.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-schema"}, Spec: flowcontrol.FlowSchemaSpec{
			MatchingPrecedence:         precedence,
			PriorityLevelConfiguration: flowcontrol.PriorityLevelConfigurationReference{Name: level},
			DistinguisherMethod: &flowcontrol.FlowDistinguisherMethod{
				Type: flowcontrol.FlowDistinguisherMethodByNamespaceType,
			},
			Rules: []flowcontrol.PolicyRulesWithSubjects{{
				Subjects: []flowcontrol.Subject{{Kind: flowcontrol.SubjectKindUser, User: &flowcontrol.UserSubject{Name: user}}},
				ResourceRules: []flowcontrol.ResourcePolicyRule{
					{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true,
						Namespaces: []string{"*"}},
				},
			}}},
	}
}

func TestObjectsConfigureLevelsAndSchemas(t *testing.T) {
	s := New(Config{Seats: 100})
	jane := func() Class { return s.Classify(who("jane"), pods) }
	require.Equal(t, "global-default", jane().Schema())
	header := http.Header{}
	jane().WriteHeader(header)
	require.Empty(t, header, "nobody has made an object")

	levels := append([]*flowcontrol.PriorityLevelConfiguration{levelOf("narrow", 10, nil), levelOf("wide", 30, nil)},
		bootstrap.SuggestedPriorityLevelConfigurations...)
	schemas := append([]*flowcontrol.FlowSchema{
		schemaOf("late", "jane", "wide", 900), schemaOf("jane", "jane", "narrow", 100),
		schemaOf("early-but-dangling", "jane", "missing", 1),
		schemaOf("behind-catch-all", "joe", "wide", 10_000),
	}, bootstrap.SuggestedFlowSchemas...)
	s.Configure(levels, schemas)
	require.Equal(t, "jane", jane().Schema(), "the lowest precedence whose level exists")
	require.Equal(t, "narrow", jane().Level())
	require.Equal(t, "d", jane().flow)
	require.Equal(t, 4, s.Limits()["narrow"], "10 of 285 shares, rounded up")
	require.Equal(t, "exempt", s.Classify(who("admin", user.SystemPrivilegedGroup), pods).Level(),
		"the mandatory ones exist without objects")
	require.Equal(t, "catch-all", s.Classify(&user.DefaultInfo{Name: "nobody"}, pods).Schema())
	jane().WriteHeader(header)
	require.Equal(t, http.Header{schemaHeader: {"uid-of-schema"}, levelHeader: {"uid-of-level"}}, header)
	require.Equal(t, http.CanonicalHeaderKey(flowcontrol.ResponseHeaderMatchedFlowSchemaUID), schemaHeader)
	require.Equal(t, http.CanonicalHeaderKey(flowcontrol.ResponseHeaderMatchedPriorityLevelConfigurationUID), levelHeader)

	// A level that may not borrow has only its own seats.
	require.Len(t, fill(t, s, who("jane")), 3, "three quarters of them for one flow")
	other := resource("list", "", "e", "pods", "")
	k, err := s.Begin(s.Classify(who("jane"), other), false)
	require.NoError(t, err)
	require.NoError(t, k.Acquire(context.Background()))
	k2, err := s.Begin(s.Classify(who("jane"), other), false)
	require.NoError(t, err)
	require.Equal(t, "concurrency-limit", reason(k2.Acquire(context.Background())))
}

func TestALevelIsReplacedWhileRequestsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Seats: 100})
		queued := &flowcontrol.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 2}
		schemas := []*flowcontrol.FlowSchema{schemaOf("jane", "jane", "narrow", 100)}
		s.Configure([]*flowcontrol.PriorityLevelConfiguration{levelOf("narrow", 1, queued), levelOf("rest", 99, nil)},
			schemas)
		held := fill(t, s, who("jane"))
		require.Len(t, held, 1)
		results := make(chan error, 3)
		for range 3 {
			k, err := s.Begin(s.Classify(who("jane"), pods), false)
			require.NoError(t, err)
			go func() { results <- k.Acquire(context.Background()); k.End() }()
			synctest.Wait()
		}
		require.Equal(t, "queue-full", reason(<-results), "the queue has the configured length")

		// After a level is removed, its waiting requests are still served. Then other levels get its seats.
		s.Configure([]*flowcontrol.PriorityLevelConfiguration{levelOf("rest", 99, nil)}, schemas)
		require.Equal(t, "catch-all", s.Classify(who("jane"), pods).Level())
		require.Contains(t, s.Limits(), "narrow")
		held[0].End()
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		synctest.Wait()
		require.NotContains(t, s.Limits(), "narrow")
	})
}
