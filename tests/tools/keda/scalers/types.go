// Package scalers is two files of KEDA's package of that name (ensure-tools.sh), and a word that another of its files has.
package scalers

const externalMetricType = "External"
