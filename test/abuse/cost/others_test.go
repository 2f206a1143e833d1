package cost

import (
	"crypto/rsa"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

const widgets = "/apis/cost.test/v1/namespaces/work/widgets"

// definition has lists of each type, rules and a wide schema.
var definition = `{"metadata":{"name":"widgets.cost.test"},"spec":{"group":"cost.test","scope":"Namespaced",
"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,
"additionalPrinterColumns":[{"name":"A","type":"string","jsonPath":".spec.free[*].a"}],
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{
"plain":{"type":"array","items":{"type":"string"}},
"unique":{"type":"array","uniqueItems":false,"x-kubernetes-list-type":"set","items":{"type":"string"}},
"objects":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"string"}}}},
"keyed":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["a","b"],
"items":{"type":"object","required":["a"],"properties":{"a":{"type":"string"},"b":{"type":"string","default":"x"}}}},
"ruled":{"type":"array","maxItems":100000,"items":{"type":"integer"},"x-kubernetes-validations":[{"rule":"self.all(x, x > 0)"}]},
"manyRules":{"type":"array","maxItems":20000,"items":{"type":"integer"},"x-kubernetes-validations":[` +
	manyRules(20) + `]},
"pattern":{"type":"array","items":{"type":"string","pattern":"^(a|b|ab|a[0-9]*b?)*$"}},
"text":{"type":"string","pattern":"^(a|b|ab|a[0-9]*b?)*$","maxLength":3000000,"x-kubernetes-validations":[{"rule":"!self.contains('xyz')"}]},
"either":{"type":"array","items":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"oneOf":[{"required":["a"]},{"required":["b"]}]}},
"choice":{"type":"array","items":{"type":"string","enum":["a","b"]}},
"mapped":{"type":"object","additionalProperties":{"type":"string"}},
"free":{"type":"array","items":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}
}}}}}}]}}`

// manyRules are n rules about all items of a list.
func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"rule":"self.all(x, x > %d)"}`, i)
	}
	return b.String()[1:]
}

const widget = `{"apiVersion":"cost.test/v1","kind":"Widget","metadata":{"name":"new"},"spec":{`

var customObjects = []grown{
	{"custom plain", widgets, widget + `"plain":[`, `"a%d"`, `]}}`},
	{"custom set", widgets, widget + `"unique":[`, `"a%d"`, `]}}`},
	{"custom set of objects", widgets, widget + `"objects":[`, `{"a":"%d"}`, `]}}`},
	{"custom keyed", widgets, widget + `"keyed":[`, `{"a":"%d"}`, `]}}`},
	{"custom keyed whole", widgets, widget + `"keyed":[`, `{"a":"%d","b":"c"}`, `]}}`},
	{"custom ruled", widgets, widget + `"ruled":[`, `%d`, `]}}`},
	{"custom pattern", widgets, widget + `"pattern":[`, `"a%d"`, `]}}`},
	{"custom text", widgets, widget + `"text":"`, `a%d`, `"}}`},
	{"custom either", widgets, widget + `"either":[`, `{"a":"%[1]d","b":1}`, `]}}`},
	{"custom choice", widgets, widget + `"choice":[`, `"a%d"`, `]}}`},
	{"custom map", widgets, widget + `"mapped":{`, `"a%d":""`, `}}}`},
	{"custom free", widgets, widget + `"free":[`, `{"a%d":{}}`, `]}}`},
	{"custom unknown", widgets, widget, `"a%d":{}`, `}}`},
	{"custom owners", widgets, `{"apiVersion":"cost.test/v1","kind":"Widget","metadata":{"name":"new","ownerReferences":[`, `{"apiVersion":"v1","kind":"ConfigMap","name":"a%[1]d","uid":"u%[1]d"}`, `]}}`},
	{"managers", maps, `{"metadata":{"name":"new","managedFields":[`, `{"manager":"a%d","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}`, `]}}`},
	{"updating managers", maps, `{"metadata":{"name":"new","managedFields":[`, `{"manager":"a%d","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}`, `]}}`},
	{"custom managers", widgets, `{"apiVersion":"cost.test/v1","kind":"Widget","metadata":{"name":"new","managedFields":[`, `{"manager":"a%d","operation":"Apply","apiVersion":"cost.test/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:a":{}}}}`, `]}}`},
}

// define creates the definition and waits until its kind is served.
func (w *world) define() {
	answer := w.send(call{"POST", crds, jsons, definition})
	if answer.Code != http.StatusCreated {
		w.t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	controlplane.Until(w, &apiextensionsv1.CustomResourceDefinitionList{}, "", "widgets.cost.test",
		func(crd *apiextensionsv1.CustomResourceDefinition) bool {
			for _, c := range crd.Status.Conditions {
				if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
					return true
				}
			}
			return false
		})
}

// signingRequest is a request for a certificate of a key of n bytes.
func signingRequest(n int) string {
	modulus := new(big.Int).Lsh(big.NewInt(1), uint(n/2*8)) //nolint:gosec // small
	modulus.Add(modulus, big.NewInt(12345))
	key, _ := asn1.Marshal(rsa.PublicKey{N: modulus, E: 1<<31 - 1})
	type keyInfo struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	name, _ := asn1.Marshal(pkix.Name{CommonName: "a"}.ToRDNSequence())
	info, _ := asn1.Marshal(struct {
		Version    int
		Subject    asn1.RawValue
		Key        keyInfo
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}{0, asn1.RawValue{FullBytes: name}, keyInfo{pkix.AlgorithmIdentifier{
		Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: asn1.NullRawValue,
	}, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}}, nil})
	signature := make([]byte, n/2+1)
	signature[5] = 1
	raw, _ := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: info}, pkix.AlgorithmIdentifier{
		Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue,
	}, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw})
	return `{"metadata":{"name":"new"},"spec":{"signerName":"a.b/c","usages":["digital signature"],"request":"` +
		base64.StdEncoding.EncodeToString(text) + `"}}`
}

const longestPath = 60 << 10

func query(n int, head, part, tail string) string {
	return head + url.QueryEscape(many(min(n, longestPath/3), "", part, tail, rising))
}

// nested repeats open and close around a middle until the text has n bytes.
func nested(n int, open, middle, end string) string {
	count := n / (len(open) + len(end))
	return strings.Repeat(open, count) + middle + strings.Repeat(end, count)
}

func celPolicy(expression string) string {
	raw, _ := json.Marshal(expression)
	return policy + `"validations":[{"expression":` + string(raw) + `}]}}`
}

var policies = at("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies") + dryRun

var others = map[string]func(n int) call{
	"a certificate's key": func(n int) call {
		path := at("certificates.k8s.io", "v1", "certificatesigningrequests") + dryRun
		return call{"POST", path, jsons, signingRequest(n / 2)}
	},
	"label selector": func(n int) call { return call{"GET", query(n, maps+"?labelSelector=", "a%d!=b", ""), "", ""} },
	"label values":   func(n int) call { return call{"GET", query(n, maps+"?labelSelector=a+in+(", "a%d", ")"), "", ""} },
	"field selector": func(n int) call {
		return call{"GET", query(n, pods+"?fieldSelector=", "metadata.name!=a%d", ""), "", ""}
	},
	"dry runs": func(n int) call {
		return call{"GET", maps + "?" + strings.Repeat("dryRun=All&", min(n, longestPath)/11), "", ""}
	},
	"semicolons": func(n int) call {
		return call{"GET", maps + "?" + strings.Repeat(";a", min(n, longestPath)/2), "", ""}
	},
	"accept": func(n int) call {
		return call{"GET", maps, "a " + strings.Repeat("a/b;q=0.1,", min(n, longestPath)/10), ""}
	},
	"accept params": func(n int) call {
		return call{"GET", maps, "a application/json" + strings.Repeat(";a=b", min(n, longestPath)/4), ""}
	},
	"slashes": func(n int) call { return call{"GET", "/api" + strings.Repeat("/a", min(n, longestPath)/2), "", ""} },
	"openapi": func(int) call { return call{"GET", "/openapi/v3/api/v1", "", ""} },
	"rules": func(int) call {
		return call{"POST", at("authorization.k8s.io", "v1", "selfsubjectrulesreviews"), jsons, `{"spec":{"namespace":"work"}}`}
	},
	"pretty": func(int) call { return call{"GET", maps + "?pretty=1", yamls + " " + yamls, ""} },
	"table":  func(int) call { return call{"GET", maps, "a application/json;as=Table;v=v1;g=meta.k8s.io", ""} },
	"table of object": func(int) call {
		return call{"GET", maps + "?includeObject=Object", "a application/json;as=Table;v=v1;g=meta.k8s.io", ""}
	},
	"cel parentheses": func(n int) call { return call{"POST", policies, jsons, celPolicy(nested(n, "(", "true", ")"))} },
	"cel not": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(strings.Repeat("!", n) + "true")}
	},
	"cel or": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(strings.Repeat("true||", n/6) + "true")}
	},
	"cel and fields": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(strings.Repeat("object.metadata.name=='a'&&", n/27) + "true")}
	},
	"cel ternary": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(strings.Repeat("true?true:", n/10) + "true")}
	},
	"cel lists": func(n int) call { return call{"POST", policies, jsons, celPolicy(nested(n, "[", "1", "]") + "!=[]")} },
	"cel maps": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(nested(n, "{'a':", "1", "}") + "!={}")}
	},
	"cel comprehensions": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(nested(n, "[1].all(x,", "true", ")"))}
	},
	"cel comprehensions in ranges": func(n int) call {
		return call{"POST", policies, jsons, celPolicy(nested(n, "[1].map(x,x>0,", "x", ")") + "==[]")}
	},
	"cel chain": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("'a'" + strings.Repeat(".lowerAscii()", n/13) + "=='a'")}
	},
	"cel chain maps": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("[1]" + strings.Repeat(".map(x,x)", n/9) + "==[1]")}
	},
	"cel optional": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("object" + strings.Repeat(".?a", n/3) + ".hasValue()")}
	},
	"cel fields": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("object.metadata" + strings.Repeat(".a", n/2) + "==1")}
	},
	"cel indexes": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("variables" + strings.Repeat("[0]", n/3) + "==1")}
	},
	"cel string": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("'" + strings.Repeat("a", n) + "'!=''")}
	},
	"cel matches": func(n int) call {
		return call{"POST", policies, jsons, celPolicy("'a'.matches('" + strings.Repeat("(a|b)*", n/6) + "')")}
	},
	"cel errors": func(n int) call { return call{"POST", policies, jsons, celPolicy(strings.Repeat("a+", n/2) + "b")} },
	"cel syntax": func(n int) call { return call{"POST", policies, jsons, celPolicy(strings.Repeat("&& (", n/4))} },
	"cel tokens": func(n int) call { return call{"POST", policies, jsons, celPolicy(strings.Repeat("# ", n/2))} },
	"crd deep": func(n int) call {
		return call{"POST", crds + dryRun, jsons, crd(nested(n, `"properties":{"a":{"type":"object",`, `"nullable":true`, `}}`)) + `}}]}}`}
	},
	"crd deep any of": func(n int) call {
		return call{"POST", crds + dryRun, jsons, crd(`"properties":{"a":{`+nested(n, `"anyOf":[{`, `"minLength":1`, `}]`)+`}}`) + `}}]}}`}
	},
	"apply deep": func(n int) call {
		return call{http.MethodPatch, widgets + "/new" + dryRun + "&fieldManager=me", "application/apply-patch+yaml",
			widget + `"free":[` + nested(n, `{"a":`, "1", "}") + `]}}`}
	},
	"apply yaml lines": func(n int) call {
		return call{http.MethodPatch, maps + "/new" + dryRun + "&fieldManager=me", "application/apply-patch+yaml",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: new}\ndata:\n" +
				strings.ReplaceAll(many(n, "", "  a%d: b", "", falling), ",", "\n")}
	},
	"yaml comments": func(n int) call { return call{"POST", maps + dryRun, yamls, strings.Repeat("#\n", n/2) + "a: b"} },
	"yaml keys":     func(n int) call { return call{"POST", maps + dryRun, yamls, strings.Repeat("a: b\n", n/5)} },
	"yaml flow":     func(n int) call { return call{"POST", maps + dryRun, yamls, nested(n, "{? ", "a", "}")} },
	"yaml question": func(n int) call { return call{"POST", maps + dryRun, yamls, strings.Repeat("? ", n/2)} },
	"yaml anchors": func(n int) call {
		body := many(n, "", "a%[1]d: &a%[1]d 1", "\nz: *a1000000", rising)
		return call{"POST", maps + dryRun, yamls, strings.ReplaceAll(body, ",", "\n")}
	},
	"yaml block": func(n int) call {
		return call{"POST", maps + dryRun, yamls, "data: {a: |\n" + strings.Repeat(" \n", n/2)}
	},
	"yaml dashes": func(n int) call { return call{"POST", maps + dryRun, yamls, "a: " + strings.Repeat("- ", n/2)} },
	"yaml quotes": func(n int) call {
		return call{"POST", maps + dryRun, yamls, "a: \"" + strings.Repeat("\\u0041", n/6) + "\""}
	},
	"yaml tags":    func(n int) call { return call{"POST", maps + dryRun, yamls, "a: " + strings.Repeat("!a ", n/3)} },
	"yaml docs":    func(n int) call { return call{"POST", maps + dryRun, yamls, strings.Repeat("---\n", n/4)} },
	"yaml numbers": func(n int) call { return call{"POST", maps + dryRun, yamls, "a: " + strings.Repeat("9", n)} },
	"yaml colons":  func(n int) call { return call{"POST", maps + dryRun, yamls, strings.Repeat("a:", n/2)} },
	"yaml time": func(n int) call {
		return call{"POST", maps + dryRun, yamls, "a: 2001-01-01 " + strings.Repeat(" ", n)}
	},
	"yaml merges": func(n int) call {
		return call{"POST", maps + dryRun, yamls, "a: &a {b: c}\nd: {" + strings.Repeat("<<: *a, ", n/8) + "}"}
	},
	"json number": func(n int) call {
		return call{"POST", widgets + dryRun, jsons, widget + `"free":[{"a":` + strings.Repeat("9", n) + `}]}}`}
	},
	"json fraction": func(n int) call {
		return call{"POST", widgets + dryRun, jsons, widget + `"free":[{"a":0.` + strings.Repeat("9", n) + `}]}}`}
	},
	"json same key": func(n int) call {
		return call{"POST", maps + dryRun, jsons, many(n, `{`, `"metadata":{"name":"new"}`, `}`, same)}
	},
	"json unknown": func(n int) call { return call{"POST", maps + dryRun, jsons, many(n, `{`, `"a%d":1`, `}`, rising)} },
	"strict unknown": func(n int) call {
		return call{"POST", maps + dryRun + "&fieldValidation=Strict", jsons, many(n, `{`, `"a%d":1`, `}`, rising)}
	},
	"json case": func(n int) call {
		return call{"POST", maps + dryRun, jsons, many(n, `{"metadata":{`, `"NAME%d":1`, `}}`, rising)}
	},
	"indexes": func(n int) call {
		return call{"POST", in("batch", "v1", "jobs") + dryRun, jsons, many(n, `{"metadata":{"name":"new"},"spec":{"completionMode":"Indexed","completions":2,"backoffLimitPerIndex":1,"template":`+pod+`,"restartPolicy":"Never"}}},"status":{"completedIndexes":"1`, `%d`, `"}}`, rising)}
	},
	"quantity": func(n int) call {
		return call{"POST", pods + dryRun, jsons, container + `,"resources":{"limits":{"cpu":"1` + strings.Repeat("0", n) + `"}}}]}}`}
	},
	"name": func(n int) call {
		return call{"POST", maps + dryRun, jsons, `{"metadata":{"name":"` + strings.Repeat("a.", n/2) + `"}}`}
	},
	"label value": func(n int) call {
		return call{"POST", maps + dryRun, jsons, `{"metadata":{"name":"new","labels":{"a":"` + strings.Repeat("a.", n/2) + `"}}}`}
	},
	"image": func(n int) call {
		return call{"POST", pods + dryRun, jsons, `{"metadata":{"name":"new"},"spec":{"containers":[{"name":"a","image":"` + strings.Repeat("a/", n/2) + `"}]}}`}
	},
	"schedule": func(n int) call {
		return call{"POST", in("batch", "v1", "cronjobs") + dryRun, jsons, fmt.Sprintf(`{"metadata":{"name":"new"},"spec":{"schedule":"%s * * * *","jobTemplate":{}}}`, strings.TrimSuffix(strings.Repeat("0-59,", n/5), ","))}
	},
	"field path": func(n int) call {
		return call{"POST", pods + dryRun, jsons, container + `,"env":[{"name":"a","valueFrom":{"fieldRef":{"fieldPath":"metadata.` + strings.Repeat("labels['", n/8) + `"}}}]}]}}`}
	},
	"json path": func(n int) call {
		return call{"POST", crds + dryRun, jsons, crd("") + `,"additionalPrinterColumns":[{"name":"a","type":"string","jsonPath":"` + strings.Repeat("..a", n/3) + `"}]}]}}`}
	},
	"json path nested": func(n int) call {
		return call{"POST", crds + dryRun, jsons, crd("") + `,"additionalPrinterColumns":[{"name":"a","type":"string","jsonPath":".a` + nested(n, "[?(@.a==", "1", ")]") + `"}]}]}}`}
	},
}

// TestCustom measures objects of a kind that a definition describes.
func TestCustom(t *testing.T) {
	if _, ok := long(); !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, true)
	w.define()
	for _, a := range customObjects {
		for _, o := range []string{"rising", "falling"} {
			name := strings.ReplaceAll(a.name, " ", "-") + "/" + o
			body := func(n int) string { return many(n, a.head, a.part, a.tail, orders[o]) }
			r := w.rowAt(a.path)
			t.Run(name+"/json", func(t *testing.T) {
				w.judge(t, 24<<10, func(n int) call { return call{"POST", a.path + dryRun, jsons, body(n)} })
			})
			t.Run(name+"/apply", func(t *testing.T) {
				w.judge(t, 24<<10, func(n int) call {
					c := asApply(r, a.path, body(n))
					if strings.HasPrefix(body(100), `{"api`) {
						c.body = body(n)
					}
					return c
				})
			})
		}
	}
}

// TestOthers measures requests of other forms.
func TestOthers(t *testing.T) {
	if _, ok := long(); !ok {
		t.Skip("CORACLE_TEST_COST is not set")
	}
	w := newWorld(t, true)
	w.define()
	for name, make := range others {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) { w.judge(t, 6<<10, make) })
	}
}
