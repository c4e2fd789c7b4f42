"""English to German, WMT 2014: the task of the 2017 paper, which reports 27.3 BLEU on the test set.

Command:  python train.py --config=configs/wmt14_ende.py
Data:     tfds build wmt14_translate/de-en --file_format=array_record
Hardware: not yet run; meant for 8 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import wmt17_ende


def get_config(arg=None):
    config = wmt17_ende.get_config(arg)
    config.data.name = "wmt14_translate/de-en"
    return config
